package stack

import (
	"errors"
	"net/http"

	"github.com/coder/websocket"
)

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
