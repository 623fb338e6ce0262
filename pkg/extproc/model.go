package extproc

import (
	"bytes"
	"net/url"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
)

// unreadableModel stands for a name that is there and cannot be read: too long, or spelled with escapes. No connection lists
// it.
const unreadableModel = "\x00"

// model is the model that the request names, as far as is known by now: by its path, for APIs that name it there, else as the
// last member "model" of its JSON body. It is empty where none is known.
func (x *exchange) model() string {
	if x.facts.model != "" {
		return x.facts.model
	}
	name, known := x.body.scanner.Model()
	if known && len(name) == 0 {
		return unreadableModel
	}
	return string(name)
}

// wrongModel refuses a body that names, after the fence has been passed, a model that the connection does not serve: behind the
// evidence window, a second time, or where bodies follow their headers' answer. The upstream has a part of the body at the most.
func (x *exchange) wrongModel() *Verdict {
	if !x.lease.fenced || x.lease.fence.Unchecked || !x.lease.byBody {
		return nil
	}
	name, known := x.body.scanner.Model()
	if !known || (len(name) > 0 && string(name) == x.lease.model) {
		return nil
	}
	if x.lease.model = x.model(); x.server.leases.Serves(x.lease.fence.Pool, x.lease.fence.Connection, x.lease.model) {
		return nil
	}
	return leaseVerdict(&lease.Refusal{Reason: lease.NoEligibleConnection})
}

// bedrockOperations are what Amazon Bedrock does with the model that its path names.
var bedrockOperations = map[string]bool{
	"invoke": true, "invoke-with-response-stream": true, "converse": true, "converse-stream": true, "count-tokens": true,
	"invoke-with-bidirectional-stream": true,
}

// modelOfPath is the model that a path names, whatever a gateway has put before it; empty where it names none:
//
//	/v1beta/models/NAME:streamGenerateContent         Gemini, Vertex AI and its publishers
//	/model/NAME/converse-stream                       Amazon Bedrock
//	/openai/deployments/NAME/chat/completions         Azure OpenAI
func modelOfPath(path []byte) string {
	path, _, _ = bytes.Cut(path, []byte("?"))
	segments := strings.Split(strings.Trim(string(path), "/"), "/")
	last := len(segments) - 1
	name, method, found := lastCut(segments[last], ":")
	switch {
	case found && googleMethods[method]:
		return unescaped(name)
	case last >= 2 && strings.EqualFold(segments[last-2], "model") && bedrockOperations[strings.ToLower(segments[last])]:
		return unescaped(segments[last-1])
	}
	for i, segment := range segments[:last] {
		if i > 0 && strings.EqualFold(segments[i-1], "openai") && strings.EqualFold(segment, "deployments") {
			return unescaped(segments[i+1])
		}
	}
	return ""
}

// lastCut is strings.Cut at the last separator, which may be written as an escape.
func lastCut(s, separator string) (before, after string, found bool) {
	s = strings.NewReplacer("%3A", separator, "%3a", separator).Replace(s)
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// unescaped undoes percent-encoding. A name that is not encoded well is unreadable.
func unescaped(name string) string {
	plain, err := url.PathUnescape(name)
	if err != nil || plain == "" {
		return unreadableModel
	}
	return plain
}
