package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/admin"
)

// way is a way in which Envoy hands bodies over.
type way struct {
	mode     stack.Mode
	trailers filterv3.ProcessingMode_HeaderSendMode // of requests
}

func (w way) String() string {
	if w.trailers == skip {
		return string(w.mode) + "WithoutTrailers"
	}
	return string(w.mode)
}

// contactsLast reports that the upstream is not contacted before the decision.
func (w way) contactsLast() bool {
	return w.mode == stack.ModeEarly || w.mode == stack.ModeBuffered || w.mode == stack.ModeNone
}

// shows reports whether anything of a body shows before the upstream's answer. Nothing does of one that is only a trailer
// where trailers do not show and the headers' answer is not withheld: there the answer itself is the first sign of its end,
// and the decision is taken on it without a wait.
func (w way) shows(s shape) bool {
	return len(s.pieces) > 0 || !s.trailer || w.trailers == sent || w.mode == stack.ModeEarly
}

// ways are all that there are. A full-duplex Envoy must send trailers, and one that sends no body needs not.
var ways = []way{
	{stack.ModeEarly, sent}, {stack.ModeEarly, skip},
	{stack.ModeStreamed, sent}, {stack.ModeStreamed, skip},
	{stack.ModeBuffered, sent}, {stack.ModeBuffered, skip},
	{stack.ModeBufferedPartial, sent}, {stack.ModeBufferedPartial, skip},
	{stack.ModeFullDuplex, sent}, {stack.ModeNone, sent},
}

// shape is a way in which a client sends a body.
type shape struct {
	name     string
	pieces   []string
	declared bool
	pause    time.Duration // between the pieces
	trailer  bool
	aborted  bool // after the last piece
}

const chatHead, chatTail = `{"messages":[{"role":"user",`, `"content":"Say something."}]}`

// shapes are bodies that say the same, or nothing. The pause is longer than decision.uploadIdle.
var shapes = []shape{
	{name: "sized", pieces: []string{chatHead + chatTail}, declared: true},
	{name: "chunked", pieces: []string{chatHead, chatTail}},
	{name: "trailer", pieces: []string{chatHead, chatTail}, trailer: true},
	{name: "notJSONTrailer", pieces: []string{"plain", "text"}, trailer: true},
	{name: "empty"},
	{name: "emptyTrailer", trailer: true},
	{name: "paused", pieces: []string{chatHead, chatTail}, pause: 400 * time.Millisecond},
	{name: "pausedSized", pieces: []string{chatHead, chatTail}, pause: 400 * time.Millisecond, declared: true},
	{name: "pausedTrailer", pieces: []string{chatHead, chatTail}, pause: 400 * time.Millisecond, trailer: true},
	{name: "aborted", pieces: []string{chatHead}, pause: 50 * time.Millisecond, aborted: true},
	{name: "abortedPaused", pieces: []string{chatHead}, pause: 400 * time.Millisecond, declared: true, aborted: true},
}

func (s shape) bytes() int64 { return int64(len(strings.Join(s.pieces, ""))) }

// Read side of a shape: its pieces one by one, and then its end or, of an aborted one, an error.
type sending struct {
	shape
	ctx  context.Context
	next int
}

var errAborted = errors.New("the client aborts")

func (s *sending) Read(p []byte) (int, error) {
	if (s.next > 0 || s.aborted) && s.next <= len(s.pieces) && s.pause > 0 {
		select {
		case <-time.After(s.pause):
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	if s.next == len(s.pieces) {
		if s.aborted {
			return 0, errAborted
		}
		return 0, io.EOF
	}
	n := copy(p, s.pieces[s.next])
	s.next++
	return n, nil
}

// post sends a shape.
func (s shape) post(ctx context.Context, st *stack.Stack, c *http.Client, path string) (response, error) {
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, st.Envoy.URL()+path, &sending{shape: s, ctx: ctx})
	if err != nil {
		return response{}, err
	}
	out.Header.Set("Content-Type", "application/json")
	out.ContentLength = -1
	if s.declared {
		out.ContentLength = s.bytes()
		if s.aborted {
			out.ContentLength *= 2
		}
	}
	if s.trailer {
		out.Trailer = http.Header{"X-End": {"1"}}
	}
	in, err := c.Do(out)
	if err != nil {
		return response{}, err
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	return response{in.StatusCode, in.Header, in.Trailer, string(body)}, err
}

// shortage is what requests go short of.
type shortage struct {
	overlay string
	refuses []string // route clusters in which the wait for it ends in a refusal
	reason  string   // of that
	holder  string   // a body that takes all of it
	held    func(h admin.Health, cluster string) bool
	queued  func(h admin.Health, cluster string) int
	needed  func(w way, s shape) bool // whether a request needs it, as far as can be known
	last    func(w way, s shape) bool // whether the upstream is contacted only once it is there
}

// lanesShort has lanes of each route cluster: there is one for each outcome. A limit of 9 lets one request with a body in at a
// time: it costs 7, and the cheapest 4.
var lanesShort = shortage{
	overlay: `
decision: {uploadIdle: 150ms, maxWait: 8s}
clusters:
  free: {lanes: {mode: enforce, minLimit: 1000, initialLimit: 1000, maxLimit: 1000}}
  full: {lanes: {mode: enforce, minLimit: 9, initialLimit: 9, maxLimit: 9, maxShare: 1, maxWait: 1ms}}
  freed: {lanes: {mode: enforce, minLimit: 9, initialLimit: 9, maxLimit: 9, maxShare: 1, maxWait: 7s}}
  expires: {lanes: {mode: enforce, minLimit: 9, initialLimit: 9, maxLimit: 9, maxShare: 1, maxWait: 600ms}}
`,
	refuses: []string{"full", "expires"},
	reason:  "admission_deadline",
	holder:  chatHead + chatTail,
	held:    func(h admin.Health, cluster string) bool { return h.AdaptiveAdmission[cluster].ActiveCount == 1 },
	queued: func(h admin.Health, cluster string) int {
		return h.AdaptiveAdmission[cluster].QueuedCount + h.AdaptiveAdmission[cluster].LaneQueuedCount
	},
	needed: func(way, shape) bool { return true },
	last:   func(w way, s shape) bool { return w.contactsLast() && w.shows(s) },
}

// bytesShort has one budget for all, with room for every shape at once, and for one holder with little beside it.
var bytesShort = shortage{
	overlay: `
decision: {uploadIdle: 150ms, maxWait: 8s}
bytes: {largeBody: 1, budget: {floor: 1, override: 1000}, queue: {maxWait: 3s, calmWait: 3s}, releaseAt: responseEnd}
`,
	refuses: []string{"expires"},
	reason:  "queue_timeout",
	holder:  strings.Repeat(" ", 999),
	held:    func(h admin.Health, _ string) bool { return h.ChatAdmission.InflightBytes >= 999 },
	queued:  func(h admin.Health, _ string) int { return h.ChatAdmission.Waiting },
	needed:  func(w way, s shape) bool { return s.bytes() > 0 && (w.mode != stack.ModeNone || s.declared) },
	last:    func(w way, s shape) bool { return w.contactsLast() || s.declared },
}

// crossing is one Envoy with everything that is sent through it.
type crossing struct {
	t *testing.T
	s *stack.Stack
	way
	shortage
	http2 bool
}

// TestSameDecisionInEveryMode: however Envoy hands a body over and however the client sends it, a request is admitted where
// there is room, refused where there is none, and waits where it may, until there is room, the wait is over or the client is
// gone.
func TestSameDecisionInEveryMode(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]shortage{"Lanes": lanesShort, "Bytes": bytesShort} {
		for _, w := range ways {
			if name == "Bytes" && w.trailers == sent && w.mode != stack.ModeFullDuplex && w.mode != stack.ModeNone {
				continue // bytes are counted when they come, and not by how a body ends
			}
			t.Run(name+"/"+w.String(), func(t *testing.T) {
				t.Parallel()
				s := start(t, stack.Options{Overlay: r.overlay, Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
					if err := b.UseMode(w.mode); err != nil {
						return err
					}
					return b.Processor(func(p *filterv3.ExternalProcessor) { p.ProcessingMode.RequestTrailerMode = w.trailers })
				}}})
				for _, http2 := range []bool{false, true} {
					x := crossing{t, s, w, r, http2}
					x.admits()
					for _, cluster := range r.refuses {
						x.refused(cluster)
					}
					x.waits()
					x.leaves()
					idle(t.Context(), t, s)
				}
			})
		}
	}
}

// path is that of a cell; its first segment picks the route cluster.
func (x crossing) path(cluster string, s shape) string {
	return fmt.Sprintf("/%s/%s/http2=%t", cluster, s.name, x.http2)
}

// admits: where there is room everything passes whole, and what is aborted reaches no upstream whole.
func (x crossing) admits() {
	x.each(func(s shape) {
		got, err := s.post(x.t.Context(), x.s, client(x.t, x.http2), x.path("free", s))
		x.passed("with room", "free", s, got, err)
	})
}

// refused: where there is no room everything is refused, and no upstream gets a whole request.
func (x crossing) refused(cluster string) {
	defer x.hold(cluster)()
	x.each(func(s shape) {
		path := x.path(cluster, s)
		got, err := s.post(x.t.Context(), x.s, client(x.t, x.http2), path)
		if !x.needed(x.way, s) {
			x.passed("without a need", cluster, s, got, err)
			return
		}
		if s.aborted && err != nil {
			return // it went before its answer came
		}
		if err != nil || got.status != 503 || got.reason() != x.reason {
			x.t.Errorf("%s %s, no room = %d %q (%v), want 503 %s", x.way, path, got.status, got.reason(), err, x.reason)
		}
		seen := x.s.Upstream.CountsOf(path)
		if x.last(x.way, s) && seen.Seen != 0 {
			x.t.Errorf("%s %s, no room: the upstream was contacted, want only after the decision", x.way, path)
		}
		if s.bytes() > 0 && seen.Completed != 0 {
			x.t.Errorf("%s %s, no room: the upstream had the whole request", x.way, path)
		}
	})
}

// answer is what came of a request.
type answer struct {
	response
	error
}

// begin sends a request in the background and waits until it is queued, or over because it cannot be.
func (x crossing) begin(ctx context.Context, s shape, path string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		got, err := s.post(ctx, x.s, client(x.t, x.http2), path)
		done <- answer{got, err}
	}()
	eventually(x.t, fmt.Sprint(x.way, " ", s.name, " to wait"), func() bool { return x.waiting("freed") == 1 || len(done) > 0 })
	return done
}

// waits: what waits for room is admitted when there is room, and an aborted one leaves the queue.
func (x crossing) waits() {
	for _, s := range shapes {
		release := x.hold("freed")
		done := x.begin(x.t.Context(), s, x.path("freed", s))
		if s.aborted {
			<-done
			eventually(x.t, "an aborted request to leave the queue", func() bool { return x.waiting("freed") == 0 })
			release()
			continue
		}
		release()
		got := <-done
		if x.needed(x.way, s) && !x.shows(s) {
			if got.status != 503 || got.reason() != x.reason {
				x.t.Errorf("%s %s, no room yet = %d %q (%v), want 503 %s", x.way, x.path("freed", s), got.status, got.reason(), got.error, x.reason)
			}
			continue
		}
		x.passed("room after a wait", "freed", s, got.response, got.error)
	}
}

// leaves: a client that goes while its request waits is out of the queue, and no upstream gets a whole request of it.
func (x crossing) leaves() {
	release := x.hold("freed")
	defer release()
	for _, s := range shapes {
		if s.aborted || !x.needed(x.way, s) || !x.shows(s) {
			continue
		}
		ctx, cancel := context.WithCancel(x.t.Context())
		path := x.path("freed", s) + "/leaves"
		done := x.begin(ctx, s, path)
		cancel()
		if got := <-done; got.error == nil {
			x.t.Errorf("%s %s, no room = %d %q, want it to wait until its client is gone", x.way, path, got.status, got.reason())
		}
		eventually(x.t, "a request without a client to leave the queue", func() bool { return x.waiting("freed") == 0 })
		if n := x.s.Upstream.CountsOf(path).Completed; s.bytes() > 0 && n != 0 {
			x.t.Errorf("%s %s: the upstream had the whole request of a client that left before there was room", x.way, path)
		}
	}
}

// passed checks that a request was admitted.
func (x crossing) passed(when, cluster string, s shape, got response, err error) {
	path := x.path(cluster, s)
	if s.aborted {
		if n := x.s.Upstream.CountsOf(path).Completed; err == nil || n != 0 {
			x.t.Errorf("%s %s, %s, aborted = %d %q, %d whole ones at the upstream; want no answer and none", x.way, path, when, got.status, got.reason(), n)
		}
		return
	}
	var e stack.Echo
	if err == nil {
		err = json.Unmarshal([]byte(got.body), &e)
	}
	if err != nil || got.status != 200 || e.BodyBytes != s.bytes() {
		x.t.Errorf("%s %s, %s = %d %q, %d bytes at the upstream (%v), want 200 and %d", x.way, path, when, got.status, got.reason(), e.BodyBytes, err, s.bytes())
	}
}

// each runs a test of all shapes at once.
func (x crossing) each(test func(s shape)) {
	var all sync.WaitGroup
	for _, s := range shapes {
		all.Go(func() { test(s) })
	}
	all.Wait()
}

// hold takes all the room that a route cluster has, until the returned function is called.
func (x crossing) hold(cluster string) (release func()) {
	held := func() bool { return x.held(health(x.t, x.s), cluster) }
	eventually(x.t, cluster+" to be free", func() bool { return !held() })
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = send(ctx, x.s, client(x.t, false), request{method: "POST", path: "/" + cluster + "/hold?ms=60000",
			body: strings.NewReader(x.holder), length: int64(len(x.holder))}) // ends with cancel
	}()
	eventually(x.t, cluster+" to be full", held)
	return func() {
		cancel()
		<-done
	}
}

// waiting is how many requests wait in a route cluster.
func (x crossing) waiting(cluster string) int { return x.queued(health(x.t, x.s), cluster) }
