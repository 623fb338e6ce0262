package load

import (
	"fmt"
	"io"
	"net"
	"net/http"
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
	w.Header().Set("content-type", "application/json")
	_, _ = w.Write([]byte(`{"choices":[]}`)) // fails when Envoy has reset the request
}
