package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Upstream is the demo upstream: an HTTP server for HTTP/1.1 and HTTP/2 without TLS on one port. A leading /leased in
// the path makes no difference to what is answered.
//
//	/slow?ms=                    the echo, that much later
//	/drip?n=&ms=                 n server-sent events, one every ms milliseconds
//	/status/N                    the echo with status N; ?retry-after= adds the header
//	/early                       answers before it reads the body
//	/trailers                    the echo with trailers
//	/ws                          WebSocket echo
//	/echo.Echo/Say, /Chat        gRPC echo, unary and bidirectional
//	/v1/chat/completions         like a language model's API, streamed or not, from an engine that slows down under
//	                             load; max_tokens sets the length, ?n=&ms= number and pace of the tokens
//	/v1/messages                 the same in Anthropic's form, for POST
//	anything else                the echo; ?ms= delays it
//
// The echo is an Echo as JSON.
type Upstream struct {
	listener net.Listener
	server   *http.Server
	rpc      *grpc.Server
	tally    tally
	engine   *engine
}

// Echo is what the upstream saw of a request.
type Echo struct {
	Method        string      `json:"method"`
	Path          string      `json:"path"` // with the query
	Proto         string      `json:"proto"`
	Host          string      `json:"host"`
	Headers       http.Header `json:"headers"`
	Trailers      http.Header `json:"trailers,omitempty"`
	ContentLength int64       `json:"contentLength"` // as declared; -1 is not declared
	BodyBytes     int64       `json:"bodyBytes"`     // as received
	BodySHA256    string      `json:"bodySHA256"`
}

// NewUpstream starts an upstream on addr, host:port; an empty addr is a free port on 127.0.0.1.
func NewUpstream(addr string) (*Upstream, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("start the demo upstream: %w", err)
	}
	u := &Upstream{listener: l, rpc: newEchoServer(), engine: newEngine()}
	u.server = &http.Server{
		Handler:           http.HandlerFunc(u.serve),
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100_000},
		ReadHeaderTimeout: 10 * time.Second,
	}
	u.server.Protocols.SetHTTP1(true)
	u.server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = u.server.Serve(l) }() // ends with ErrServerClosed in Close
	return u, nil
}

// Addr returns the address it listens on.
func (u *Upstream) Addr() string { return u.listener.Addr().String() }

// Close ends the server and every request in it.
func (u *Upstream) Close() {
	_ = u.server.Close() // the listener's error says nothing new here
	u.rpc.Stop()
}

// serve counts the request and answers it.
func (u *Upstream) serve(w http.ResponseWriter, r *http.Request) {
	done := u.tally.begin(r)
	defer done()
	path := strings.TrimPrefix(r.URL.Path, "/leased")
	switch {
	case r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		u.rpc.ServeHTTP(w, r)
	case path == "/ws":
		serveWebSocket(w, r)
	case path == "/drip":
		serveDrip(w, r)
	case path == "/early":
		serveEarly(w, r)
	case path == "/trailers":
		serveTrailers(w, r)
	case path == "/v1/chat/completions":
		u.serveChat(w, r, openAIWhole, openAIStream)
	case path == "/v1/messages" && r.Method == http.MethodPost:
		u.serveChat(w, r, anthropicWhole, anthropicStream)
	case strings.HasPrefix(path, "/status/"):
		serveStatus(w, r, strings.TrimPrefix(path, "/status/"))
	default:
		e, err := readEcho(r)
		if err == nil && sleep(r.Context(), number(r, "ms", 0)) {
			reply(w, http.StatusOK, e)
		}
	}
}

// readEcho reads the body, keeping none of it. An error is an aborted request: nobody is left to answer.
func readEcho(r *http.Request) (Echo, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, r.Body)
	return Echo{
		Method: r.Method, Path: r.URL.RequestURI(), Proto: r.Proto, Host: r.Host, Headers: r.Header, Trailers: r.Trailer,
		ContentLength: r.ContentLength, BodyBytes: n, BodySHA256: hex.EncodeToString(sum.Sum(nil)),
	}, err
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails when the client is gone
}

func serveStatus(w http.ResponseWriter, r *http.Request, text string) {
	e, err := readEcho(r)
	if err != nil {
		return
	}
	status, err := strconv.Atoi(text)
	if err != nil || status < 200 || status > 599 {
		reply(w, http.StatusBadRequest, map[string]string{"error": "want /status/200 to /status/599"})
		return
	}
	if after := r.URL.Query().Get("retry-after"); after != "" {
		w.Header().Set("Retry-After", after)
	}
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.WriteHeader(status)
		return
	}
	reply(w, status, e)
}

// serveEarly answers in full, then reads what the client still sends.
func serveEarly(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		reply(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, map[string]bool{"early": true})
	_ = control.Flush()                // fails when the client is gone
	_, _ = io.Copy(io.Discard, r.Body) // as above
}

func serveTrailers(w http.ResponseWriter, r *http.Request) {
	e, err := readEcho(r)
	if err != nil {
		return
	}
	w.Header().Set("Trailer", "X-Demo-Trailer, X-Body-Sha256")
	reply(w, http.StatusOK, e)
	w.Header().Set("X-Demo-Trailer", "end")
	w.Header().Set("X-Body-Sha256", e.BodySHA256)
}

func serveDrip(w http.ResponseWriter, r *http.Request) {
	if _, err := readEcho(r); err != nil {
		return
	}
	events := newEvents(w)
	for i := range number(r, "n", 10) {
		if !sleep(r.Context(), number(r, "ms", 100)) || !events.send(map[string]int{"i": i}) {
			return
		}
	}
}

// events writes server-sent events.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newEvents(w http.ResponseWriter) events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	e := events{w, http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	_ = e.control.Flush() // the next send notices a client that is gone
	return e
}

// named writes an event whose type is in its name and its data.
func (e events) named(kind string, data map[string]any) bool {
	data["type"] = kind
	if _, err := fmt.Fprintf(e.w, "event: %s\n", kind); err != nil {
		return false
	}
	return e.send(data)
}

// send writes one event at once; false means that the client is gone.
func (e events) send(data any) bool {
	text, ok := data.(string)
	if !ok {
		encoded, err := json.Marshal(data)
		if err != nil {
			return false
		}
		text = string(encoded)
	}
	if _, err := fmt.Fprintf(e.w, "data: %s\n\n", text); err != nil {
		return false
	}
	return e.control.Flush() == nil
}

// sleep waits that many milliseconds; false means that the client left first.
func sleep(ctx context.Context, milliseconds int) bool {
	return wait(ctx, time.Duration(milliseconds)*time.Millisecond)
}

// wait is sleep for any duration.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// number returns a query parameter, or otherwise when it is absent or no number.
func number(r *http.Request, name string, otherwise int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil {
		return otherwise
	}
	return n
}
