package load

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
)

// caller makes requests over one connection, which it opens with the first.
type caller interface {
	// call returns the status of the answer and, where that is no 200, the begin of its body.
	call(ctx context.Context) (status int, body []byte, err error)
	close()
}

// caller returns that of connection i.
func (o Options) caller(i int) caller {
	var more []Header
	if len(o.Headers) > 0 {
		more = o.Headers[i%len(o.Headers)]
	}
	if o.HTTP2 {
		return newHTTP2(o.Address, o.Shape, more)
	}
	return &http1{address: o.Address, request: o.Shape.Request(more...)}
}

// http1 writes the bytes of the request as they are: it costs little.
type http1 struct {
	address string
	request []byte
	conn    net.Conn
	answers *bufio.Reader
}

func (h *http1) call(ctx context.Context) (int, []byte, error) {
	if h.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", h.address)
		if err != nil {
			return 0, nil, err
		}
		h.conn, h.answers = conn, bufio.NewReader(conn)
	}
	stop := context.AfterFunc(ctx, func() { h.conn.Close() })
	defer stop()
	if _, err := h.conn.Write(h.request); err != nil {
		return 0, nil, err
	}
	answer, err := http.ReadResponse(h.answers, nil)
	if err != nil {
		return 0, nil, err
	}
	if answer.Close { // the next request needs another connection
		defer func() {
			h.conn.Close()
			h.conn = nil
		}()
	}
	return drain(answer)
}

func (h *http1) close() {
	if h.conn != nil {
		h.conn.Close()
	}
}

// drain reads an answer to its end.
func drain(answer *http.Response) (int, []byte, error) {
	defer answer.Body.Close()
	var body []byte
	if answer.StatusCode != http.StatusOK {
		body, _ = io.ReadAll(io.LimitReader(answer.Body, 512)) // only for the message
	}
	_, err := io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, bytes.TrimSpace(body), err
}

// http2 is net/http's client.
type http2 struct {
	transport *http.Transport
	request   *http.Request
	body      []byte
}

func newHTTP2(address string, shape Shape, more []Header) *http2 {
	h := &http2{transport: &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}, body: []byte(shape.Body())}
	h.transport.Protocols.SetUnencryptedHTTP2(true)
	h.request, _ = http.NewRequest(shape.method(), "http://"+address+Path, nil) // an address of our own
	for _, header := range append(shape.headers(), more...) {
		h.request.Header.Set(header.Name, header.Value)
	}
	return h
}

func (h *http2) call(ctx context.Context) (int, []byte, error) {
	request := h.request.Clone(ctx)
	if len(h.body) > 0 {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(h.body)), int64(len(h.body))
	}
	answer, err := h.transport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	return drain(answer)
}

func (h *http2) close() { h.transport.CloseIdleConnections() }
