package extproc

import (
	"bytes"
	"net/url"

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
func (x *exchange) wrongModel() *verdict {
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
	path = bytes.TrimRight(path, "/")
	before, last := cutLast(path, "/")
	if name, method := cutMethod(last); googleMethods[string(method)] {
		return unescaped(name)
	}
	above, name := cutLast(before, "/")
	if bedrockOperations[string(last)] && endsWithFold(above, "/model") {
		return unescaped(name)
	}
	for rest := path; ; {
		i := bytes.IndexByte(rest, '/')
		if i < 0 {
			return ""
		}
		rest = rest[i:]
		if len(rest) > len(azureDeployments) && bytes.EqualFold(rest[:len(azureDeployments)], []byte(azureDeployments)) {
			name, _, _ := bytes.Cut(rest[len(azureDeployments):], []byte("/"))
			return unescaped(name)
		}
		rest = rest[1:]
	}
}

// azureDeployments is what stands before a model's name in Azure OpenAI's paths.
const azureDeployments = "/openai/deployments/"

// cutLast is bytes.Cut at the last separator; what comes after is all where there is none.
func cutLast(s []byte, separator string) (before, after []byte) {
	i := bytes.LastIndex(s, []byte(separator))
	if i < 0 {
		return nil, s
	}
	return s[:i], s[i+len(separator):]
}

// cutMethod splits NAME:method. The colon may be written as an escape.
func cutMethod(segment []byte) (name, method []byte) {
	for _, colon := range []string{":", "%3A", "%3a"} {
		if name, method = cutLast(segment, colon); name != nil && googleMethods[string(method)] {
			return name, method
		}
	}
	return nil, nil
}

func endsWithFold(s []byte, end string) bool {
	return len(s) >= len(end) && bytes.EqualFold(s[len(s)-len(end):], []byte(end))
}

// unescaped undoes percent-encoding. A name that is not encoded well is unreadable.
func unescaped(name []byte) string {
	plain, err := url.PathUnescape(string(name))
	if err != nil || plain == "" {
		return unreadableModel
	}
	return plain
}
