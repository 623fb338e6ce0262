package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/budget"
)

const mebibyte = 1 << 20

// manyBodies sends n bodies of 1 MiB at once, half of them with a declared length, half over HTTP/2, to an upstream
// that takes ms milliseconds, and returns the answers by reason; "" is admitted.
func manyBodies(t *testing.T, s *stack.Stack, n, ms int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	clients := map[bool]*http.Client{false: client(t, false), true: client(t, true)}
	var mu sync.Mutex
	reasons := map[string]int{}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			http2, declared := i%2 == 0, i%4 < 2
			got, err := upload(ctx, s, clients[http2], http2, declared, request{path: fmt.Sprintf("/many?ms=%d", ms), body: noise(mebibyte), length: mebibyte})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("body %d: %v", i, err)
				return
			}
			reasons[got.reason()]++
			checkContended(t, i, got)
		})
	}
	all.Wait()
	return reasons
}

// checkContended checks that an answer is the upstream's, or the refusal that contention is answered with.
func checkContended(t *testing.T, i int, got response) {
	t.Helper()
	if got.reason() == "" {
		if got.status != 200 {
			t.Errorf("body %d = %d, want 200", i, got.status)
		}
		return
	}
	after, err := strconv.Atoi(got.header.Get("Retry-After"))
	if got.status != 503 || err != nil || after < 2 || after > 60 {
		t.Errorf("body %d = %d %q, Retry-After %q, want 503 and 2 to 60 s", i, got.status, got.reason(), got.header.Get("Retry-After"))
	}
}

func TestContentionIsBounded(t *testing.T) {
	t.Parallel()
	const bodies = 40
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}, queue: {maxWait: 300ms, calmWait: 300ms}}"})
	stop := watch(t.Context(), s)
	reasons := manyBodies(t, s, bodies, 1500)
	seen := stop()
	seen.check(t)
	if seen.mostBytes < 6*mebibyte || seen.mostQueued > 4*mebibyte {
		t.Errorf("at most %d bytes were reserved and %d waited, want most of 8 MiB and at most 4 MiB", seen.mostBytes, seen.mostQueued)
	}
	refused := reasons[string(budget.QueueTimeout)] + reasons[string(budget.QueuedBytesBudget)]
	if reasons[""] < 8 || reasons[string(budget.QueueTimeout)] == 0 || reasons[""]+refused != bodies {
		t.Errorf("%d bodies of 1 MiB in 8 MiB = %v, want at least 8 admitted, some refused after a wait, and no other end", bodies, reasons)
	}
	if b := health(t, s).ChatAdmission; b.ShedTotal != int64(refused) {
		t.Errorf("%d sheds counted, want one for each of %d refusals", b.ShedTotal, refused)
	}
}

// TestContentionWaits: who waits is admitted when a reservation comes free, and nobody is refused who can be served.
func TestContentionWaits(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}, queue: {maxWait: 7s, calmWait: 7s, maxQueuedBytes: 64MiB}}"})
	stop := watch(t.Context(), s)
	if reasons := manyBodies(t, s, 24, 200); reasons[""] != 24 {
		t.Errorf("24 bodies of 1 MiB through 8 MiB, with time to wait = %v, want all admitted", reasons)
	}
	seen := stop()
	seen.check(t)
	if seen.mostQueued == 0 {
		t.Error("nothing ever waited, want most of the bodies to")
	}
}

// fill reserves the whole budget of 8 MiB for bodies that the upstream holds until the returned function is called.
func fill(t *testing.T, s *stack.Stack) (empty func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, _ = upload(ctx, s, client(t, true), true, true, request{path: "/held?ms=60000", body: noise(mebibyte), length: mebibyte}) // ends with cancel
		})
	}
	eventually(t, "the budget to be full", func() bool { return health(t, s).ChatAdmission.InflightBytes == 8*mebibyte })
	return func() {
		cancel()
		all.Wait()
	}
}

// TestEveryBodyIsCharged: no framing gets around a full budget.
func TestEveryBodyIsCharged(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	stop := watch(t.Context(), s)
	empty := fill(t, s)
	framings(t, func(t *testing.T, c *http.Client, http2, declared bool) {
		got, err := upload(t.Context(), s, c, http2, declared, request{path: "/more", body: noise(mebibyte), length: mebibyte})
		refusedAs(t, "1 MiB more", got, err, 503, "queue_timeout")
		got, err = upload(t.Context(), s, c, http2, declared, request{path: "/light", body: noise(100_000), length: 100_000})
		passed(t, "a light body", got, err, 100_000, digest(noise(100_000)))
	})
	got, err := upload(t.Context(), s, nil, false, true, request{path: "/never", body: zeros(9 * mebibyte), length: 9 * mebibyte})
	refusedAs(t, "9 MiB, more than the budget", got, err, 413, "body_exceeds_budget")
	if after := got.header.Get("Retry-After"); after != "" {
		t.Errorf("Retry-After %q for a body that never fits, want none", after)
	}
	empty()
	stop().check(t)
	if n := s.Upstream.CountsOf("/more").Completed; n != 0 {
		t.Errorf("the upstream had %d of the refused bodies whole, want 0", n)
	}
}

// TestGrowthWithoutALengthStaysInTheBudget: bodies that grow while others hold the budget are refused in the middle.
func TestGrowthStaysInTheBudget(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	stop := watch(t.Context(), s)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			http2 := i%2 == 0
			got, err := upload(t.Context(), s, client(t, http2), http2, false, request{path: "/grows?ms=500", body: noise(3 * mebibyte)})
			if err != nil {
				t.Errorf("body %d: %v", i, err)
				return
			}
			checkContended(t, i, got)
		})
	}
	all.Wait()
	seen := stop()
	seen.check(t)
	if seen.mostBytes < 3*mebibyte {
		t.Errorf("at most %d bytes were reserved, want 3 MiB at the least", seen.mostBytes)
	}
}

// TestLyingContentLength: Envoy refuses a request that says both; where it is told not to, what arrives counts.
func TestLyingContentLength(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"refused": false, "allowed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}", Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
				return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
					if m.HttpProtocolOptions == nil {
						m.HttpProtocolOptions = &corev3.Http1ProtocolOptions{}
					}
					m.HttpProtocolOptions.AllowChunkedLength = allowed
					return nil
				})
			}}})
			if !allowed {
				raw := dialRaw(t, s)
				raw.say(t, "POST /lies HTTP/1.1\nHost: t\nContent-Length: 1\nTransfer-Encoding: chunked\n\n2\nab\n0\n\n")
				got, err := raw.answer("POST") // Envoy may also close without a word
				if (err == nil && got.status != 400) || s.Upstream.Counts().Seen != 0 {
					t.Errorf("both framings = %d, the upstream saw %d requests, want Envoy to refuse it", got.status, s.Upstream.Counts().Seen)
				}
				return
			}
			got, err := upload(t.Context(), s, nil, false, false, request{path: "/lies", body: noise(2 * mebibyte),
				headers: map[string]string{"Content-Length": "1"}})
			refusedAs(t, "2 MiB that say they are 1 byte", got, err, 413, "payload_too_large")
		})
	}
}

// TestStalledUploadsLoseTheirReservation: who declares much and sends nothing, or a byte now and then, is refused, and others
// get in.
func TestStalledUploadsLoseTheirReservation(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {uploadTimeout: 2s, budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	var stalled []*rawConn
	for i := range 8 {
		c := dialRaw(t, s)
		c.say(t, "POST /stalled HTTP/1.1\nHost: t\nContent-Length: %d\n\n", mebibyte)
		stalled = append(stalled, c)
		if i%2 == 1 {
			go func() {
				for {
					if _, err := c.Write([]byte("x")); err != nil {
						return // refused, or the test is over
					}
					time.Sleep(300 * time.Millisecond)
				}
			}()
		}
	}
	eventually(t, "the budget to be full", func() bool { return health(t, s).ChatAdmission.InflightBytes == 8*mebibyte })
	one := request{path: "/one", body: noise(mebibyte), length: mebibyte}
	got, err := upload(t.Context(), s, nil, false, true, one)
	refusedAs(t, "a body while all is reserved", got, err, 503, "queue_timeout")
	var all sync.WaitGroup // each reads as soon as it can: what trickles on resets the connection in the end
	for i, c := range stalled {
		all.Go(func() {
			got, err := c.answer("POST")
			refusedAs(t, fmt.Sprintf("stalled upload %d", i), got, err, 408, "upload_timeout")
		})
	}
	all.Wait()
	got, err = upload(t.Context(), s, nil, false, true, request{path: "/one", body: noise(mebibyte), length: mebibyte})
	passed(t, "a body after that", got, err, mebibyte, digest(noise(mebibyte)))
	if n := s.Upstream.CountsOf("/stalled").Completed; n != 0 {
		t.Errorf("the upstream had %d whole bodies of stalled uploads, want 0", n)
	}
}

// TestRefusalsAreTellable: status, reason, Envoy's response code details and the access log tell every kind apart.
func TestRefusalsAreTellable(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}, queue: {calmWait: 50ms}, hardMaxBody: 20MiB, structure: {hardMaxMessages: 2}}",
		Run: stack.EnvoyOptions{AccessLog: log.file}})
	empty := fill(t, s)
	for i, c := range []struct {
		size   int64
		body   string
		status int
		reason string
	}{
		{21 * mebibyte, "", 413, "payload_too_large"},
		{9 * mebibyte, "", 413, "body_exceeds_budget"},
		{mebibyte, "", 503, "queue_timeout"},
		{0, `{"messages":[1,2,3]}`, 413, "message_limit"},
	} {
		path := fmt.Sprintf("/kind/%d", i)
		r := request{path: path, body: zeros(c.size), length: c.size}
		if c.body != "" {
			r.body, r.length = strings.NewReader(c.body), int64(len(c.body))
		}
		got, err := upload(t.Context(), s, nil, false, true, r)
		refusedAs(t, c.reason, got, err, c.status, c.reason)
		line := log.line(t, path)
		want := fmt.Sprintf("status=%d details=headgate_%s ", c.status, c.reason)
		if !strings.Contains(line, want) || !strings.Contains(line, "decision=refused reason="+c.reason) {
			t.Errorf("access log %q, want %q and the decision", line, want)
		}
	}
	empty()
}
