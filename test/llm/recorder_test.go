//go:build llm

package llm

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// recorder passes on bytes between Envoy and an upstream, and notes what the upstream sends, and when.
type recorder struct {
	addr string

	mu     sync.Mutex
	pieces []piece // since the last reset
}

// piece is some bytes that were there at a time.
type piece struct {
	at    time.Time
	bytes []byte
}

func newRecorder(t *testing.T, target string) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &recorder{addr: l.Addr().String()}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go r.note(out, in)
		}
	}()
	return r
}

// note copies what the upstream says to Envoy.
func (r *recorder) note(upstream, envoy net.Conn) {
	defer envoy.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := upstream.Read(buffer)
		if n > 0 {
			r.mu.Lock()
			r.pieces = append(r.pieces, piece{time.Now(), bytes.Clone(buffer[:n])})
			r.mu.Unlock()
			if _, err := envoy.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// reset forgets what has been sent. One response may follow until the next.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pieces = nil
}

// body returns the body of the response since the last reset, without its chunks' framing, as pieces.
func (r *recorder) body() ([]piece, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var raw []byte
	var at []time.Time // of each byte
	for _, p := range r.pieces {
		raw = append(raw, p.bytes...)
		for range p.bytes {
			at = append(at, p.at)
		}
	}
	i := bytes.Index(raw, []byte("\r\n\r\n"))
	if i < 0 {
		return nil, fmt.Errorf("no response headers in %q", raw)
	}
	var body []piece
	for i += 4; ; {
		line := bytes.Index(raw[i:], []byte("\r\n"))
		if line < 0 {
			return nil, fmt.Errorf("no chunk at %q", raw[i:])
		}
		size, err := strconv.ParseInt(string(raw[i:i+line]), 16, 32)
		if err != nil {
			return nil, fmt.Errorf("no chunk: %w", err)
		}
		i += line + 2
		if size == 0 {
			return body, nil
		}
		if len(raw) < i+int(size)+2 {
			return nil, fmt.Errorf("a chunk of %d bytes is cut off", size)
		}
		body = append(body, piece{at[i+int(size)-1], raw[i : i+int(size)]})
		i += int(size) + 2
	}
}

// events are the times at which server-sent events were complete.
func events(pieces []piece) (at []time.Time) {
	var pending []byte
	for _, p := range pieces {
		pending = append(pending, p.bytes...)
		for {
			_, rest, found := bytes.Cut(pending, []byte("\n\n"))
			if !found {
				break
			}
			pending = rest
			at = append(at, p.at)
		}
	}
	return at
}

func joined(pieces []piece) (all []byte) {
	for _, p := range pieces {
		all = append(all, p.bytes...)
	}
	return all
}
