package extproc

import (
	"bytes"
	"net/url"
)

// unreadableModel stands for a name that is there and cannot be read: too long, or spelled with escapes. No connection lists
// it.
const unreadableModel = "\x00"

// apiPath is a request's path as the APIs of models have it, whatever a gateway has put before it. It lies in the message.
type apiPath struct {
	path  []byte // without the query and slashes at the end
	above []byte // what stands before the last segment
	last  []byte // the last segment
	// Of a last segment NAME:method with one of Google's custom methods, the two parts; nil for any other.
	name, method []byte
}

// readPath takes a path apart. The colon of a custom method may be written as an escape.
func readPath(path []byte) apiPath {
	path, _, _ = bytes.Cut(path, []byte("?"))
	p := apiPath{path: bytes.TrimRight(path, "/")}
	p.above, p.last = cutLast(p.path, "/")
	for _, colon := range []string{":", "%3A", "%3a"} {
		if name, method := cutLast(p.last, colon); name != nil && googleMethods[string(method)] {
			p.name, p.method = name, method
			break
		}
	}
	return p
}

// googleMethods are the custom methods (https://google.aip.dev/136) of models in Google's APIs.
var googleMethods = map[string]bool{
	"generateContent": true, "streamGenerateContent": true, "batchGenerateContent": true, "countTokens": true, "computeTokens": true,
	"embedContent": true, "batchEmbedContents": true, "asyncBatchEmbedContent": true, "generateAnswer": true, "predict": true,
	"predictLongRunning": true, "serverStreamingPredict": true, "rawPredict": true, "streamRawPredict": true,
}

// bedrockOperations are what Amazon Bedrock does with the model that its path names.
var bedrockOperations = map[string]bool{
	"invoke": true, "invoke-with-response-stream": true, "converse": true, "converse-stream": true, "count-tokens": true,
	"invoke-with-bidirectional-stream": true,
}

// azureDeployments is what stands before a model's name in Azure OpenAI's paths.
const azureDeployments = "/openai/deployments/"

// shape says which API a request calls: by the path, and by the header that Anthropic's API requires.
func (p apiPath) shape(anthropicVersion bool) shape {
	switch {
	case bytes.Contains(p.path, []byte("/publishers/anthropic/")):
		return anthropic
	case p.method != nil:
		return google
	case anthropicVersion, bytes.HasSuffix(p.path, []byte("/v1/messages")), bytes.Contains(p.path, []byte("/v1/messages/")):
		return anthropic
	case bytes.HasPrefix(p.path, []byte("/v1beta/")) && !bytes.HasPrefix(p.path, []byte("/v1beta/openai/")):
		return google
	}
	return openAI
}

// streams reports a path that asks for a stream. Other APIs ask for it in the body.
func (p apiPath) streams() bool {
	switch string(p.method) {
	case "streamGenerateContent", "streamRawPredict", "serverStreamingPredict":
		return true
	}
	switch string(p.last) {
	case "converse-stream", "invoke-with-response-stream", "invoke-with-bidirectional-stream":
		return p.bedrockModel() != nil
	}
	return false
}

// model is the model that the path names; empty where it names none:
//
//	/v1beta/models/NAME:streamGenerateContent         Gemini, Vertex AI and its publishers
//	/model/NAME/converse-stream                       Amazon Bedrock
//	/openai/deployments/NAME/chat/completions         Azure OpenAI
func (p apiPath) model() string {
	if p.method != nil {
		return unescaped(p.name)
	}
	if name := p.bedrockModel(); name != nil {
		return unescaped(name)
	}
	if name := p.azureModel(); name != nil {
		return unescaped(name)
	}
	return ""
}

// bedrockModel is the model of a call of Amazon Bedrock, nil for any other path.
func (p apiPath) bedrockModel() []byte {
	if !bedrockOperations[string(p.last)] {
		return nil
	}
	above, name := cutLast(p.above, "/")
	if !endsWithFold(above, "/model") {
		return nil
	}
	return name
}

// azureModel is the model of a call of Azure OpenAI, nil for any other path.
func (p apiPath) azureModel() []byte {
	for rest := p.path; ; rest = rest[1:] {
		i := bytes.IndexByte(rest, '/')
		if i < 0 {
			return nil
		}
		rest = rest[i:]
		if len(rest) > len(azureDeployments) && bytes.EqualFold(rest[:len(azureDeployments)], []byte(azureDeployments)) {
			name, _, _ := bytes.Cut(rest[len(azureDeployments):], []byte("/"))
			return name
		}
	}
}

// cutLast is bytes.Cut at the last separator; what comes after is all where there is none.
func cutLast(s []byte, separator string) (before, after []byte) {
	i := bytes.LastIndex(s, []byte(separator))
	if i < 0 {
		return nil, s
	}
	return s[:i], s[i+len(separator):]
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
