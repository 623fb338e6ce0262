package stack

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// chatRequest is what the demo upstream reads of a request to a language model, OpenAI's or Anthropic's.
type chatRequest struct {
	Model               string `json:"model"`
	Stream              bool   `json:"stream"`
	MaxTokens           int    `json:"max_tokens"`
	MaxCompletionTokens int    `json:"max_completion_tokens"`
}

// chatWords are the answer to everything, as often as needed.
var chatWords = []string{"All", " quiet", " at", " the", " headgate."}

// maxChatTokens bounds an answer.
const maxChatTokens = 1000

// tokens is how long the answer is.
func (r chatRequest) tokens() int {
	if n := max(r.MaxTokens, r.MaxCompletionTokens); n > 0 {
		return min(n, maxChatTokens)
	}
	return len(chatWords)
}

// chatAnswer is one answer while it is generated.
type chatAnswer struct {
	request  chatRequest
	prompt   int // tokens
	tokens   int
	generate func(yield func(i int) bool) bool // false: the client left
}

// text is the whole answer.
func (a chatAnswer) text() string {
	var b strings.Builder
	for i := range a.tokens {
		b.WriteString(chatWords[i%len(chatWords)])
	}
	return b.String()
}

// serveChat answers like a language model's API: a stream's headers at once and its tokens as they are generated, any other
// answer when it is complete. The parameters n and ms set the number of tokens and their pace instead of the engine.
func (u *Upstream) serveChat(w http.ResponseWriter, r *http.Request, whole, stream func(http.ResponseWriter, chatAnswer)) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a := chatAnswer{prompt: (len(body) + 3) / 4}
	if err := json.Unmarshal(body, &a.request); err != nil {
		reply(w, http.StatusBadRequest, map[string]any{"error": map[string]string{
			"message": "the body is not a JSON object", "type": "invalid_request_error"}})
		return
	}
	a.tokens = number(r, "n", a.request.tokens())
	a.generate = func(yield func(int) bool) bool { return u.engine.generate(r.Context(), a.prompt, a.tokens, yield) }
	if query := r.URL.Query(); query.Has("n") || query.Has("ms") {
		a.generate = func(yield func(int) bool) bool { return pace(r.Context(), a, number(r, "ms", 20), yield) }
	}
	if a.request.Stream {
		stream(w, a)
		return
	}
	if a.generate(func(int) bool { return true }) {
		whole(w, a)
	}
}

// pace generates a token every ms milliseconds; one that does not stream takes ms in all.
func pace(ctx context.Context, a chatAnswer, ms int, yield func(int) bool) bool {
	if !a.request.Stream {
		return sleep(ctx, ms)
	}
	for i := range a.tokens {
		if !sleep(ctx, ms) || !yield(i) {
			return false
		}
	}
	return true
}

// openAIWhole is a chat.completion.
func openAIWhole(w http.ResponseWriter, a chatAnswer) {
	reply(w, http.StatusOK, map[string]any{
		"id": "chatcmpl-demo", "object": "chat.completion", "created": time.Now().Unix(), "model": a.request.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]string{"role": "assistant", "content": a.text()}}},
		"usage":   map[string]int{"prompt_tokens": a.prompt, "completion_tokens": a.tokens, "total_tokens": a.prompt + a.tokens},
	})
}

// openAIStream is a series of chat.completion.chunk.
func openAIStream(w http.ResponseWriter, a chatAnswer) {
	out := newEvents(w)
	chunk := map[string]any{"id": "chatcmpl-demo", "object": "chat.completion.chunk", "created": time.Now().Unix(), "model": a.request.Model}
	send := func(delta map[string]string, finish any) bool {
		chunk["choices"] = []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}
		return out.send(chunk)
	}
	complete := a.generate(func(i int) bool {
		delta := map[string]string{"content": chatWords[i%len(chatWords)]}
		if i == 0 {
			delta["role"] = "assistant"
		}
		return send(delta, nil)
	})
	if complete && send(map[string]string{}, "stop") {
		out.send("[DONE]")
	}
}

// anthropicMessage is a message of Anthropic's API.
func anthropicMessage(a chatAnswer, content []any, stop any, written int) map[string]any {
	return map[string]any{
		"id": "msg_demo", "type": "message", "role": "assistant", "model": a.request.Model, "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": map[string]int{"input_tokens": a.prompt, "output_tokens": written},
	}
}

// anthropicWhole is a message.
func anthropicWhole(w http.ResponseWriter, a chatAnswer) {
	reply(w, http.StatusOK, anthropicMessage(a, []any{map[string]string{"type": "text", "text": a.text()}}, "end_turn", a.tokens))
}

// anthropicStream is the series of events of a message.
func anthropicStream(w http.ResponseWriter, a chatAnswer) {
	out := newEvents(w)
	type event = map[string]any
	complete := a.generate(func(i int) bool {
		begun := i > 0 || (out.named("message_start", event{"message": anthropicMessage(a, []any{}, nil, 1)}) &&
			out.named("content_block_start", event{"index": 0, "content_block": event{"type": "text", "text": ""}}))
		return begun && out.named("content_block_delta", event{"index": 0, "delta": event{"type": "text_delta", "text": chatWords[i%len(chatWords)]}})
	})
	_ = complete && out.named("content_block_stop", event{"index": 0}) &&
		out.named("message_delta", event{"delta": event{"stop_reason": "end_turn", "stop_sequence": nil}, "usage": event{"output_tokens": a.tokens}}) &&
		out.named("message_stop", event{})
}
