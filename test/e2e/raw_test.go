package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// rawConn is a client's connection to Envoy on which a test writes whatever it likes.
type rawConn struct {
	net.Conn
	in *bufio.Reader
}

// dialRaw opens a connection that is closed at the end of the test and on which nothing takes longer than a minute.
func dialRaw(t *testing.T, s *stack.Stack) *rawConn {
	t.Helper()
	c, err := openRaw(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func openRaw(ctx context.Context, s *stack.Stack) (*rawConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.Envoy.Address)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	return &rawConn{c, bufio.NewReader(c)}, nil
}

// say writes text, with CRLF for every line break.
func (c *rawConn) say(t *testing.T, format string, args ...any) {
	t.Helper()
	if _, err := io.WriteString(c, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\r\n")); err != nil {
		t.Fatalf("write to Envoy: %v", err)
	}
}

// answer reads one response to its end.
func (c *rawConn) answer(method string) (response, error) {
	in, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		return response{}, err
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	if in.Close {
		in.Header.Set("Connection", "close") // which ReadResponse takes out
	}
	return response{in.StatusCode, in.Header, in.Trailer, string(body)}, err
}

// mustAnswer is answer for the test's own goroutine.
func (c *rawConn) mustAnswer(t *testing.T, method string) response {
	t.Helper()
	got, err := c.answer(method)
	if err != nil {
		t.Fatalf("read the answer to %s: %v", method, err)
	}
	return got
}

// upload sends a POST over HTTP/1.1 or HTTP/2, with its length declared or not, and reads the response even while the
// body is still being sent.
func upload(ctx context.Context, s *stack.Stack, c *http.Client, http2, declared bool, r request) (response, error) {
	r.method = http.MethodPost
	if http2 {
		length := r.length
		if !declared {
			r.length = 0
		} else if length == 0 {
			r.body = http.NoBody
		}
		return send(ctx, s, c, r)
	}
	raw, err := openRaw(ctx, s)
	if err != nil {
		return response{}, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	framing := "Transfer-Encoding: chunked"
	if declared {
		framing = fmt.Sprintf("Content-Length: %d", r.length)
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: test\r\n%s\r\n", r.path, framing)
	for name, value := range r.headers {
		head += name + ": " + value + "\r\n"
	}
	if _, err := io.WriteString(raw, head+"\r\n"); err != nil {
		return response{}, err
	}
	go func() { // ends with the connection; what it cannot write, the answer explains
		if declared {
			_, _ = io.Copy(raw, r.body)
			return
		}
		chunks := httputil.NewChunkedWriter(raw)
		if _, err := io.Copy(chunks, r.body); err == nil {
			_ = chunks.Close()
			_, _ = io.WriteString(raw, "\r\n")
		}
	}()
	return raw.answer(http.MethodPost)
}

// noise returns n bytes that are always the same and not JSON.
func noise(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), n) }

// text returns a JSON document of exactly n bytes; of none or one byte, the nearest thing to it.
func text(n int64) string {
	const open, end = `{"a":"`, `"}`
	if n < int64(len(open+end)) {
		return strings.Repeat("1", int(n))
	}
	return open + strings.Repeat("x", int(n)-len(open+end)) + end
}
