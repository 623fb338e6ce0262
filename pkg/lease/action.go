package lease

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxModel = 512 // characters

// action is the body of a request to the HTTP API.
type action struct {
	name       string
	model      string    // acquire
	generation int64     // renew, release, status
	reason     EndReason // release
}

// parseAction reads a body strictly: one object, known fields, each once, in this very case, nothing after it.
// LEASE_ACTION_INVALID unless it is only acquire's model that is wrong: LEASE_MODEL_INVALID.
func parseAction(body []byte) (action, *Refusal) {
	fields, ok := parseObject(body)
	if !ok {
		return action{}, refuse(ActionInvalid)
	}
	a := action{reason: OwnerExit}
	if json.Unmarshal(fields["action"], &a.name) != nil {
		return action{}, refuse(ActionInvalid)
	}
	var allowed []string
	switch a.name {
	case "acquire":
		allowed = []string{"action", "model"}
	case "renew", "status":
		allowed = []string{"action", "generation"}
	case "release":
		allowed = []string{"action", "generation", "reason"}
	default:
		return action{}, refuse(ActionInvalid)
	}
	known := 0
	for _, name := range allowed {
		if _, there := fields[name]; there {
			known++
		}
	}
	if known != len(fields) {
		return action{}, refuse(ActionInvalid)
	}
	if a.name == "acquire" {
		refusal := a.readModel(fields["model"])
		return a, refusal
	}
	refusal := a.readGeneration(fields)
	return a, refusal
}

func (a *action) readModel(raw json.RawMessage) *Refusal {
	if !utf8.Valid(raw) || !isString(raw) || json.Unmarshal(raw, &a.model) != nil {
		return refuse(ModelInvalid)
	}
	a.model = strings.TrimSpace(a.model)
	if n := utf8.RuneCountInString(a.model); n < 1 || n > maxModel {
		return refuse(ModelInvalid)
	}
	return nil
}

func (a *action) readGeneration(fields map[string]json.RawMessage) *Refusal {
	raw := string(fields["generation"])
	if raw == "" || raw[0] < '1' || raw[0] > '9' {
		return refuse(ActionInvalid)
	}
	n, err := strconv.ParseInt(raw, 10, 64) // no fraction, no exponent
	if err != nil || n > maxGeneration {
		return refuse(ActionInvalid)
	}
	a.generation = n
	if reason, there := fields["reason"]; there {
		if !isString(reason) || json.Unmarshal(reason, &a.reason) != nil {
			return refuse(ActionInvalid)
		}
	}
	if a.reason != OwnerExit && a.reason != ClientCancelled {
		return refuse(ActionInvalid)
	}
	return nil
}

func isString(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// parseObject splits a JSON object into its fields. encoding/json alone would ignore the case of names, take the last of
// two fields of one name, and a null for anything.
func parseObject(body []byte) (map[string]json.RawMessage, bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, false
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		key, isText := name.(string)
		if err != nil || !isText {
			return nil, false
		}
		var value json.RawMessage
		if _, twice := fields[key]; twice || d.Decode(&value) != nil {
			return nil, false
		}
		fields[key] = value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, false
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false
	}
	return fields, true
}
