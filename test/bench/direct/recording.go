// Package direct replays what Envoy sends for one exchange straight to an ext_proc server. Without Envoy, upstream and
// HTTP client on the same cores, what the server itself costs shows with far less noise.
package direct

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/test/bench/load"
)

// recordings are what Envoy 1.40 sent for the shapes of package load, with the configuration Headgate ships. Regenerate
// them with `go run ./cmd/bench -record`.
//
//go:embed recordings/*.jsonl
var recordings embed.FS

// line is one recorded message. The body is not kept, only how much of it the message carried.
type line struct {
	Body    int             `json:"body,omitempty"`
	Message json.RawMessage `json:"message"`
}

// EncodeLine returns the line that records a message.
func EncodeLine(request *extproc.ProcessingRequest) ([]byte, error) {
	body := len(request.GetRequestBody().GetBody())
	if body > 0 {
		request = proto.CloneOf(request)
		request.GetRequestBody().Body = nil
	}
	message, err := protojson.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("record a message: %w", err)
	}
	text, err := json.Marshal(line{Body: body, Message: message})
	if err != nil {
		return nil, fmt.Errorf("record a message: %w", err)
	}
	return append(text, '\n'), nil
}

// FileName is the name of a shape's recording.
func FileName(s load.Shape) string {
	return strings.ToLower(strings.ReplaceAll(s.Name, " ", "-")) + ".jsonl"
}

// script is an exchange, encoded.
type script struct {
	request  [][]byte // messages of the request, sent without waiting
	response [][]byte // messages of the response, each sent after the answer to the one before
}

// newScript reads the recording of a shape and puts the shape's body into it.
func newScript(s load.Shape) (*script, error) {
	text, err := recordings.ReadFile("recordings/" + FileName(s))
	if err != nil {
		return nil, fmt.Errorf("no recording of %s: %w", s.Name, err)
	}
	body := []byte(s.Body())
	result := &script{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		request, n, err := decodeLine(lines.Bytes(), body)
		if err != nil {
			return nil, fmt.Errorf("recording of %s: %w", s.Name, err)
		}
		body = body[n:]
		encoded, err := proto.Marshal(request)
		if err != nil {
			return nil, fmt.Errorf("recording of %s: %w", s.Name, err)
		}
		switch request.Request.(type) {
		case *extproc.ProcessingRequest_RequestHeaders, *extproc.ProcessingRequest_RequestBody, *extproc.ProcessingRequest_RequestTrailers:
			result.request = append(result.request, encoded)
		default:
			result.response = append(result.response, encoded)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("recording of %s: %w", s.Name, err)
	}
	if len(body) > 0 || len(result.request) == 0 {
		return nil, fmt.Errorf("recording of %s: %d messages, %d bytes of body left over", s.Name, len(result.request), len(body))
	}
	return result, nil
}

// decodeLine returns a recorded message with the next bytes of body, and how many it took.
func decodeLine(text, body []byte) (*extproc.ProcessingRequest, int, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, 0, err
	}
	request := &extproc.ProcessingRequest{}
	if err := protojson.Unmarshal(l.Message, request); err != nil {
		return nil, 0, err
	}
	if l.Body > len(body) {
		return nil, 0, fmt.Errorf("%d bytes of body where %d are left", l.Body, len(body))
	}
	if l.Body > 0 {
		request.GetRequestBody().Body = body[:l.Body]
	}
	return request, l.Body, nil
}
