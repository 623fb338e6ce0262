package stack

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// chatRequest is what the demo upstream reads of a chat completion request.
type chatRequest struct {
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
}

// chatWords are the answer to everything.
var chatWords = []string{"All", " quiet", " at", " the", " headgate."}

// serveChat answers like a language model's chat completion API.
func serveChat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var ask chatRequest
	if err := json.Unmarshal(body, &ask); err != nil {
		reply(w, http.StatusBadRequest, map[string]any{"error": map[string]string{
			"message": "the body is not a JSON object", "type": "invalid_request_error"}})
		return
	}
	answer := map[string]any{"id": "chatcmpl-demo", "created": time.Now().Unix(), "model": ask.Model}
	if ask.Stream {
		streamChat(w, r, answer)
		return
	}
	if !sleep(r.Context(), number(r, "ms", 0)) {
		return
	}
	answer["object"] = "chat.completion"
	answer["choices"] = []any{map[string]any{"index": 0, "finish_reason": "stop",
		"message": map[string]string{"role": "assistant", "content": strings.Join(chatWords, "")}}}
	prompt := (len(body) + 3) / 4
	answer["usage"] = map[string]int{"prompt_tokens": prompt, "completion_tokens": len(chatWords), "total_tokens": prompt + len(chatWords)}
	reply(w, http.StatusOK, answer)
}

// streamChat sends n words, one every ms milliseconds.
func streamChat(w http.ResponseWriter, r *http.Request, answer map[string]any) {
	answer["object"] = "chat.completion.chunk"
	out := newEvents(w)
	send := func(delta map[string]string, finish any) bool {
		answer["choices"] = []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}
		return out.send(answer)
	}
	for i := range number(r, "n", len(chatWords)) {
		delta := map[string]string{"content": chatWords[i%len(chatWords)]}
		if i == 0 {
			delta["role"] = "assistant"
		}
		if !sleep(r.Context(), number(r, "ms", 20)) || !send(delta, nil) {
			return
		}
	}
	if send(map[string]string{}, "stop") {
		out.send("[DONE]")
	}
}

// serveWebSocket sends every message back until the client closes.
func serveWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // any origin: nothing here is worth protecting
	if err != nil {
		return // Accept has answered
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(64 << 20)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			var closed websocket.CloseError
			if errors.As(err, &closed) {
				_ = c.Close(closed.Code, closed.Reason) // the answer to a close; the client may be gone
			}
			return
		}
		if err := c.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}
