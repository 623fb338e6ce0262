package e2e

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/internal/stack"
)

// steady waits until a number stays the same for half a second and returns it.
func steady(t *testing.T, what string, number func() int) int {
	t.Helper()
	last, since := number(), time.Now()
	for end := time.Now().Add(20 * time.Second); time.Since(since) < 500*time.Millisecond; time.Sleep(20 * time.Millisecond) {
		if now := number(); now != last {
			last, since = now, time.Now()
		}
		if time.Now().After(end) {
			t.Fatalf("%s still changes after 20 s", what)
		}
	}
	return last
}

// TestFactEarlyBodies: chunks come while the headers' answer is held, the last one empty, and no upstream is contacted
// before it.
func TestFactEarlyBodies(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	may := make(chan struct{})
	l.play(holding(may))
	answered := make(chan response, 1)
	go func() {
		got, err := upload(t.Context(), l.Stack, nil, false, false, request{path: "/early-body", body: strings.NewReader("hello")})
		if err != nil {
			t.Error(err)
		}
		answered <- got
	}()
	d := l.stream(t)
	eventually(t, "the whole body", func() bool { return strings.HasSuffix(d.phases(), ".") })
	if got := d.phases(); got != "RH RB5 RB0." && got != "RH RB5." {
		t.Errorf("heard %q before any answer, want RH RB5 RB0.", got)
	}
	if n := l.Upstream.Counts().Seen; n != 0 {
		t.Errorf("the upstream saw %d requests before the headers were answered, want 0", n)
	}
	close(may)
	passed(t, "the body", <-answered, nil, 5, digest(strings.NewReader("hello")))
}

// TestFactEveryChunkNeedsAnAnswer: the request is not complete before the last of several held chunks is answered.
func TestFactEveryChunkNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	may, last := make(chan struct{}), make(chan struct{})
	l.play(func(d *dialogue) error {
		var owed []*extprocv3.ProcessingRequest
		for d.phases() == "" || !strings.HasSuffix(d.phases(), ".") {
			m, err := d.hear()
			if err != nil {
				return err
			}
			owed = append(owed, m)
		}
		<-may
		for i, m := range owed {
			if i == len(owed)-1 {
				<-last
			}
			if err := d.Send(pass(m)); err != nil {
				return err
			}
		}
		return obliging(d)
	})
	raw := dialRaw(t, l.Stack)
	raw.say(t, "POST /chunks HTTP/1.1\nHost: t\nTransfer-Encoding: chunked\n\n")
	for range 5 {
		raw.say(t, "4\nabcd\n")
		time.Sleep(50 * time.Millisecond) // so that they are messages of their own
	}
	raw.say(t, "0\n\n")
	close(may)
	eventually(t, "the upstream to have what was answered", func() bool { return l.Upstream.CountsOf("/chunks").BodyBytes == 20 })
	if n := steady(t, "whole bodies", func() int { return int(l.Upstream.CountsOf("/chunks").Completed) }); n != 0 {
		t.Errorf("the upstream had the whole body before the last chunk was answered")
	}
	close(last)
	passed(t, "five chunks", raw.mustAnswer(t, "POST"), nil, 20, digest(strings.NewReader(strings.Repeat("abcd", 5))))
}

// TestFactHeldChunksAreBounded: Envoy hands over about its buffer limit while nothing is answered, about twice that when
// the limit is small, and the rest after the answers.
func TestFactHeldChunksAreBounded(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]uint32{"as shipped": mebibyte, "small": 32 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(b *stack.Bootstrap) error { b.BufferLimit(limit); return nil })
			may := make(chan struct{})
			l.play(holding(may))
			answered := make(chan response, 1)
			go func() {
				got, err := upload(t.Context(), l.Stack, nil, false, true, request{path: "/held", body: noise(4 * mebibyte), length: 4 * mebibyte})
				if err != nil {
					t.Error(err)
				}
				answered <- got
			}()
			d := l.stream(t)
			held := steady(t, "what is handed over", func() int { _, sum := d.bodies(); return sum })
			if most := 2*int(limit) + 64<<10; held > most || held < int(limit)/2 {
				t.Errorf("%d bytes came without an answer, want about the limit of %d and at most %d", held, limit, most)
			}
			close(may)
			passed(t, "4 MiB", <-answered, nil, 4*mebibyte, digest(noise(4*mebibyte)))
		})
	}
}

// TestFactWithheldAnswerStopsTheClient: not answering chunks is back-pressure, all the way.
func TestFactWithheldAnswerStopsTheClient(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	may := make(chan struct{})
	l.play(func(d *dialogue) error {
		m, err := d.hear()
		if err != nil {
			return err
		}
		if err := d.Send(pass(m)); err != nil { // the headers' answer
			return err
		}
		return holding(may)(d)
	})
	sentSoFar := &counter{Reader: noise(64 * mebibyte)}
	answered := make(chan response, 1)
	go func() {
		got, err := upload(t.Context(), l.Stack, nil, false, true, request{path: "/held", body: sentSoFar, length: 64 * mebibyte})
		if err != nil {
			t.Error(err)
		}
		answered <- got
	}()
	l.stream(t)
	if n := steady(t, "what the client sends", func() int { return int(sentSoFar.n.Load()) }); n > 32*mebibyte {
		t.Errorf("the client could send %d bytes without an answer, want no more than buffers on the way hold", n)
	}
	close(may)
	passed(t, "64 MiB", <-answered, nil, 64*mebibyte, digest(noise(64*mebibyte)))
}

// TestFactHTTP2Chunks: a body of 3 MB over HTTP/2 comes in many pieces, of a DATA frame each or what waited together.
func TestFactHTTP2Chunks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	got := must(t, l.Stack, client(t, true), request{method: "POST", path: "/x", body: noise(3_000_000), length: 3_000_000})
	passed(t, "3 MB", got, nil, 3_000_000, digest(noise(3_000_000)))
	sizes, sum := l.stream(t).bodies()
	most := 0
	for _, n := range sizes {
		most = max(most, n)
	}
	if sum != 3_000_000 || len(sizes) < 10 || most > mebibyte {
		t.Errorf("%d chunks of at most %d bytes, %d together, want many, and none above the buffer limit", len(sizes), most, sum)
	}
}

// TestFactTrailersSkipped: a body that ends with trailers has no last chunk where Envoy reads trailers but does not send
// them; where it does not read them, it has.
func TestFactTrailersSkipped(t *testing.T) {
	t.Parallel()
	for read, want := range map[bool]string{true: "RH RB5 SH", false: "RH RB5 RB0. SH"} {
		t.Run(fmt.Sprint(read), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, processing(func(m *filterv3.ProcessingMode) { m.RequestTrailerMode = skip }), func(b *stack.Bootstrap) error {
				return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
					m.HttpProtocolOptions.EnableTrailers = read
					return nil
				})
			})
			raw := dialRaw(t, l.Stack)
			raw.say(t, "POST /x HTTP/1.1\nHost: t\nTransfer-Encoding: chunked\n\n5\nhello\n0\nx-t: 1\n\n")
			passed(t, "5 bytes and a trailer", raw.mustAnswer(t, "POST"), nil, 5, digest(strings.NewReader("hello")))
			d := l.stream(t)
			eventually(t, "the stream to end", d.over)
			if got := d.phases(); got != want {
				t.Errorf("heard %q, want %q", got, want)
			}
		})
	}
}

// counter counts what is read.
type counter struct {
	io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
