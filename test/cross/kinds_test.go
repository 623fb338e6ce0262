package cross

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/stack"
)

// kind is a way in which clients send requests.
type kind struct {
	name string
	body framing
	// tunnel is a connection in which both sides speak as they like. Envoy cannot hand one over in a mode that buffers.
	tunnel bool
	// anyAnswer is a request of which no more is said than that it is answered.
	anyAnswer bool
	http1Only bool // the demo upstream takes it over HTTP/1.1 only
	call      func(ctx context.Context, s *stack.Stack, c call) (answer, error)
}

// framing says how a body's end is known.
type framing int

const (
	noBody framing = iota
	sized
	chunked
	trailed // chunked, with a trailer
	messages
)

// call is one request of a kind.
type call struct {
	cluster string // in the header that picks the route
	path    string
	size    int  // of the body, where there is one
	hangs   bool // the upstream does not answer, or the client does not end, until ctx is done
}

// answer is what came back.
type answer struct {
	status int // of HTTP; of a gRPC call the HTTP status that belongs to its code
	reason string
}

const clusterHeader = "X-Cross-Cluster"

// payload is a body of n bytes that is JSON from 9 bytes on.
func payload(n int) []byte {
	const open, end = `{"a":"`, `"}`
	if n < len(open+end) {
		return bytes.Repeat([]byte("1"), n)
	}
	return []byte(open + strings.Repeat("x", n-len(open+end)) + end)
}

func (c call) url() string {
	if c.hangs {
		return c.path + "?ms=60000"
	}
	return c.path
}

var kinds = []kind{
	{name: "h1 GET", call: h1("GET", noBody)},
	{name: "h1 HEAD", call: h1("HEAD", noBody)},
	{name: "h1 OPTIONS", call: h1("OPTIONS", noBody)},
	{name: "h1 POST", body: sized, call: h1("POST", sized)},
	{name: "h1 POST chunked", body: chunked, call: h1("POST", chunked)},
	{name: "h1 POST trailer", body: trailed, call: h1("POST", trailed)},
	{name: "h1 Expect", body: sized, call: h1("POST", sized, "Expect: 100-continue")},
	{name: "h1 upgrade+body", body: sized, anyAnswer: true, call: h1("POST", sized, "Connection: Upgrade", "Upgrade: websocket")},
	{name: "h1 WebSocket", tunnel: true, http1Only: true, call: webSocket},
	{name: "h1 CONNECT", tunnel: true, http1Only: true, call: connect},
	{name: "h2 GET", call: h2("GET", noBody)},
	{name: "h2 HEAD", call: h2("HEAD", noBody)},
	{name: "h2 OPTIONS", call: h2("OPTIONS", noBody)},
	{name: "h2 POST", body: sized, call: h2("POST", sized)},
	{name: "h2 POST chunked", body: chunked, call: h2("POST", chunked)},
	{name: "h2 POST trailer", body: trailed, call: h2("POST", trailed)},
	{name: "h2 WebSocket", tunnel: true, http1Only: true, call: extendedConnect},
	{name: "gRPC unary", body: messages, call: unary},
	{name: "gRPC stream", body: messages, call: bidirectional},
}

// h1 writes a request over HTTP/1.1 and reads the response even while the body is still being sent.
func h1(method string, f framing, headers ...string) func(context.Context, *stack.Stack, call) (answer, error) {
	return func(ctx context.Context, s *stack.Stack, c call) (answer, error) {
		raw, end, err := dial(ctx, s)
		if err != nil {
			return answer{}, err
		}
		defer end()
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: test\r\n%s: %s\r\n", method, c.url(), clusterHeader, c.cluster)
		for _, h := range headers {
			head += h + "\r\n"
		}
		switch f {
		case sized:
			head += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", c.size)
		case chunked, trailed:
			head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
		case noBody, messages:
		}
		if _, err := io.WriteString(raw, head+"\r\n"); err != nil {
			return answer{}, err
		}
		expects := strings.Contains(head, "Expect:")
		if !expects {
			go writeBody(raw, f, c.size) // ends with the connection; what it cannot write, the answer explains
		}
		for {
			in, err := http.ReadResponse(raw.in, &http.Request{Method: method})
			if err != nil {
				return answer{}, err
			}
			if in.StatusCode == http.StatusContinue && expects {
				go writeBody(raw, f, c.size)
				continue
			}
			return read(in, method, f, c)
		}
	}
}

// writeBody writes a body in three pieces.
func writeBody(w io.Writer, f framing, size int) {
	if f == noBody {
		return
	}
	body := payload(size)
	for len(body) > 0 {
		piece := body[:min(len(body), size/3+1)]
		body = body[len(piece):]
		if f != sized {
			fmt.Fprintf(w, "%x\r\n", len(piece))
		}
		if _, err := w.Write(piece); err != nil {
			return
		}
		if f != sized {
			_, _ = io.WriteString(w, "\r\n")
		}
	}
	switch f {
	case chunked:
		_, _ = io.WriteString(w, "0\r\n\r\n")
	case trailed:
		_, _ = io.WriteString(w, "0\r\nx-end: 1\r\n\r\n")
	case noBody, sized, messages:
	}
}

// h2 is h1 over HTTP/2, with the client of the standard library.
func h2(method string, f framing) func(context.Context, *stack.Stack, call) (answer, error) {
	return func(ctx context.Context, s *stack.Stack, c call) (answer, error) {
		transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		var body io.Reader
		if f != noBody {
			body = bytes.NewReader(payload(c.size))
		}
		r, err := http.NewRequestWithContext(ctx, method, s.Envoy.URL()+c.url(), body)
		if err != nil {
			return answer{}, err
		}
		r.Header.Set(clusterHeader, c.cluster)
		if f != noBody {
			r.Header.Set("Content-Type", "application/json")
		}
		if f == chunked || f == trailed {
			r.ContentLength, r.Body = -1, io.NopCloser(io.MultiReader(body)) // hides the length
		}
		if f == trailed {
			r.Trailer = http.Header{"X-End": {"1"}}
		}
		in, err := transport.RoundTrip(r)
		if err != nil {
			return answer{}, err
		}
		return read(in, method, f, c)
	}
}

// read reads a response to its end. A 200 must be the echo of all that was sent.
func read(in *http.Response, method string, f framing, c call) (answer, error) {
	defer in.Body.Close()
	text, err := io.ReadAll(in.Body)
	got := answer{in.StatusCode, in.Header.Get("X-Headgate-Reason")}
	if err != nil || got.status != http.StatusOK {
		return got, err
	}
	if method == http.MethodHead {
		if len(text) > 0 {
			return got, fmt.Errorf("%d bytes in an answer to HEAD", len(text))
		}
		return got, nil
	}
	var e stack.Echo
	if err := json.Unmarshal(text, &e); err != nil {
		return got, fmt.Errorf("the answer is no echo: %w", err)
	}
	want := int64(c.size)
	if f == noBody {
		want = 0
	}
	if e.Method != method || e.BodyBytes != want {
		return got, fmt.Errorf("the upstream saw %s with %d bytes, want %s with %d", e.Method, e.BodyBytes, method, want)
	}
	if f == trailed && e.Trailers.Get("X-End") != "1" {
		return got, fmt.Errorf("the upstream saw the trailers %v, want X-End", e.Trailers)
	}
	return got, nil
}

// webSocket opens a socket and has a message echoed.
func webSocket(ctx context.Context, s *stack.Stack, c call) (answer, error) {
	ws, in, err := websocket.Dial(ctx, s.Envoy.URL()+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{clusterHeader: {c.cluster}}})
	if err != nil {
		if in == nil {
			return answer{}, err
		}
		return answer{in.StatusCode, in.Header.Get("X-Headgate-Reason")}, nil
	}
	defer func() { _ = ws.CloseNow() }()
	if err := ws.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		return answer{}, err
	}
	if _, text, err := ws.Read(ctx); err != nil || string(text) != "hello" {
		return answer{}, fmt.Errorf("%q came back (%w), want hello", text, err)
	}
	if c.hangs {
		_, _, err := ws.Read(ctx)
		return answer{}, err
	}
	return answer{status: http.StatusOK}, ws.Close(websocket.StatusNormalClosure, "")
}

// extendedConnect does the same over HTTP/2 (RFC 8441).
func extendedConnect(ctx context.Context, s *stack.Stack, c call) (answer, error) {
	frames, feed := io.Pipe()
	defer feed.Close()
	defer context.AfterFunc(ctx, func() { feed.CloseWithError(ctx.Err()) })() // the client does not look at ctx while it waits for a frame
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, s.Envoy.URL()+"/ws", frames)
	if err != nil {
		return answer{}, err
	}
	r.Header[":protocol"] = []string{"websocket"}
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	r.Header.Set(clusterHeader, c.cluster)
	transport := &http2.Transport{AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address) // without TLS
		}}
	defer transport.CloseIdleConnections()
	in, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer in.Body.Close()
	if in.StatusCode != http.StatusOK {
		return answer{in.StatusCode, in.Header.Get("X-Headgate-Reason")}, nil
	}
	go func() { _, _ = feed.Write([]byte("\x81\x85\x00\x00\x00\x00hello")) }() // a text of five bytes, masked with zeros; the echo tells
	echo := make([]byte, 7)
	if _, err := io.ReadFull(in.Body, echo); err != nil || string(echo[2:]) != "hello" {
		return answer{}, fmt.Errorf("%q came back (%w), want hello", echo, err)
	}
	if c.hangs {
		_, err := in.Body.Read(echo)
		return answer{}, errors.Join(err, ctx.Err())
	}
	return answer{status: http.StatusOK}, nil
}

// connect opens a tunnel to the upstream and speaks HTTP through it.
func connect(ctx context.Context, s *stack.Stack, c call) (answer, error) {
	raw, end, err := dial(ctx, s)
	if err != nil {
		return answer{}, err
	}
	defer end()
	fmt.Fprintf(raw, "CONNECT test:80 HTTP/1.1\r\nHost: test:80\r\n%s: %s\r\n\r\n", clusterHeader, c.cluster)
	in, err := http.ReadResponse(raw.in, &http.Request{Method: http.MethodConnect})
	if err != nil || in.StatusCode != http.StatusOK {
		if err != nil {
			return answer{}, err
		}
		defer in.Body.Close()
		return answer{in.StatusCode, in.Header.Get("X-Headgate-Reason")}, nil
	}
	fmt.Fprintf(raw, "GET %s HTTP/1.1\r\nHost: inner\r\n\r\n", c.url())
	inner, err := http.ReadResponse(raw.in, nil)
	if err != nil {
		return answer{}, fmt.Errorf("through the tunnel: %w", err)
	}
	return read(inner, "GET", noBody, c)
}

// unary calls the gRPC echo.
func unary(ctx context.Context, s *stack.Stack, c call) (answer, error) {
	conn, err := grpc.NewClient("passthrough:"+s.Envoy.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	want := payload(c.size)
	got, err := stack.Say(metadata.AppendToOutgoingContext(ctx, clusterHeader, c.cluster), conn, want)
	if err != nil {
		return grpcAnswer(err)
	}
	if !bytes.Equal(got, want) {
		return answer{}, fmt.Errorf("%d of %d bytes came back", len(got), len(want))
	}
	return answer{status: http.StatusOK}, nil
}

// bidirectional sends a stream of messages to the gRPC echo and reads each back once all are sent: a mode that buffers
// hands over nothing before.
func bidirectional(ctx context.Context, s *stack.Stack, c call) (answer, error) {
	conn, err := grpc.NewClient("passthrough:"+s.Envoy.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	chat, err := stack.Chat(metadata.AppendToOutgoingContext(ctx, clusterHeader, c.cluster), conn)
	if err != nil {
		return grpcAnswer(err)
	}
	const piece = 16 << 10
	sent := 0
	for left := c.size; left > 0; left -= piece {
		if err := chat.Send(&stack.Payload{Value: payload(min(left, piece))}); err != nil {
			break // Recv says why
		}
		sent++
	}
	if !c.hangs {
		if err := chat.CloseSend(); err != nil {
			return answer{}, err
		}
	}
	for received := 0; ; received++ {
		if _, err := chat.Recv(); errors.Is(err, io.EOF) {
			if received != sent {
				return answer{}, fmt.Errorf("%d of %d messages came back", received, sent)
			}
			return answer{status: http.StatusOK}, nil
		} else if err != nil {
			return grpcAnswer(err)
		}
	}
}

// grpcAnswer is the HTTP form of a gRPC status that the sidecar set; any other status is an error.
func grpcAnswer(err error) (answer, error) {
	said := status.Convert(err)
	for _, d := range said.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "headgate" {
			code, known := map[string]int{"Unavailable": 503, "ResourceExhausted": 413, "DeadlineExceeded": 408}[said.Code().String()]
			if !known {
				return answer{}, err
			}
			return answer{code, info.Reason}, nil
		}
	}
	return answer{}, err
}

// conn is a client's connection on which it writes whatever it likes.
type conn struct {
	net.Conn
	in *bufio.Reader
}

// dial opens a connection that ends with ctx, and on which nothing takes longer than a minute.
func dial(ctx context.Context, s *stack.Stack) (*conn, func(), error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", s.Envoy.Address)
	if err != nil {
		return nil, nil, err
	}
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		raw.Close()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	return &conn{raw, bufio.NewReader(raw)}, func() { stop(); raw.Close() }, nil
}
