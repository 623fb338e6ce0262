package load

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Upstream reads whole bodies and answers as little as it can.
type Upstream struct {
	listener net.Listener
	server   *http.Server
}

// NewUpstream starts an upstream on a free port of 127.0.0.1.
func NewUpstream() (*Upstream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the upstream: %w", err)
	}
	u := &Upstream{listener: l, server: &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 10 * time.Second}}
	go func() { _ = u.server.Serve(l) }() // ends with ErrServerClosed in Close
	return u, nil
}

// Addr is host:port.
func (u *Upstream) Addr() string { return u.listener.Addr().String() }

// Close ends the upstream.
func (u *Upstream) Close() error { return u.server.Close() }

func answer(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // Envoy has reset the request
	}
	if n, err := strconv.Atoi(r.Header.Get(eventsHeader)); err == nil {
		stream(w, n)
		return
	}
	w.Header().Set("content-type", "application/json")
	_, _ = w.Write([]byte(`{"choices":[]}`)) // fails when Envoy has reset the request
}

// stream answers the headers at once and then n events, each in a write of its own.
func stream(w http.ResponseWriter, n int) {
	w.Header().Set("content-type", "text/event-stream")
	control := http.NewResponseController(w)
	for range n {
		if err := control.Flush(); err != nil { // at first the headers alone
			return
		}
		if _, err := w.Write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"token\"}}]}\n\n")); err != nil {
			return
		}
	}
}
