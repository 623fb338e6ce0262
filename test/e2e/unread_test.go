package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/headgate/headgate/internal/stack"
)

// messages is how many Envoy has sent the sidecar.
func messages(t *testing.T, s *stack.Stack) int64 {
	t.Helper()
	n, err := s.Envoy.ProcessorStat(t.Context(), "stream_msgs_sent")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNothingGovernedCostsOneMessage: a request without a body, or with a small one, on a route cluster with neither lanes nor
// leases goes on with the answer to its headers, and reaches the upstream whole. Nothing is in flight while the upstream answers.
func TestNothingGovernedCostsOneMessage(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "clusters: {open: {lanes: {mode: off}}}"})
	protocols(t, func(t *testing.T, c *http.Client) {
		for name, r := range map[string]request{
			"no body":       {path: "/open/get"},
			"an empty body": {method: "POST", path: "/open/empty", body: http.NoBody},
			"4 KiB":         {method: "POST", path: "/open/4k", body: strings.NewReader(text(4096)), length: 4096},
			"32 KiB":        {method: "POST", path: "/open/32k", body: strings.NewReader(text(32 << 10)), length: 32 << 10},
		} {
			before := messages(t, s)
			got := must(t, s, c, r)
			passed(t, name, got, nil, r.length, digest(strings.NewReader(map[bool]string{true: text(r.length)}[r.length > 0])))
			if n := messages(t, s) - before; n != 1 {
				t.Errorf("%s: %d messages, want 1", name, n)
			}
		}
		const larger = 33 << 10
		before := messages(t, s)
		got := must(t, s, c, request{method: "POST", path: "/open/33k", body: strings.NewReader(text(larger)), length: larger})
		passed(t, "33 KiB", got, nil, larger, digest(strings.NewReader(text(larger))))
		if n := messages(t, s) - before; n < 3 {
			t.Errorf("33 KiB: %d messages, want the body's too: it may be heavy by its structure", n)
		}
	})
	raw := dialRaw(t, s)
	raw.say(t, "POST /open/drip?n=30&ms=100 HTTP/1.1\nHost: t\nContent-Length: 5\n\nhello")
	if _, err := raw.in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if busy, err := s.Sidecar.Busy(t.Context()); err != nil || len(busy) > 0 {
		t.Errorf("while the response runs the sidecar has %v (%v), want nothing", busy, err)
	}
}

// TestLimitsHoldWhereOneMessageIsSent: of a request that goes on with the answer to its headers the length is checked and the
// memory looked at all the same, and one that does not declare its length is counted as it arrives.
func TestLimitsHoldWhereOneMessageIsSent(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := cgroup(t, root)
	s := start(t, stack.Options{Overlay: `
clusters: {open: {lanes: {mode: off}}}
bytes: {hardMaxBody: 16KiB, budget: {cgroupRoot: ` + root + `}}
pressure: {interval: 2s} # after each the trickle may double
`})
	severity := func() any { return health(t, s).ChatAdmission.PressureSeverity }
	const most = 16 << 10
	protocols(t, func(t *testing.T, c *http.Client) {
		http2 := strings.HasSuffix(t.Name(), "2")
		for _, declared := range []bool{true, false} {
			name := fmt.Sprintf("declared %t", declared)
			got, err := upload(t.Context(), s, c, http2, declared, request{path: "/open/most", body: noise(most), length: most})
			passed(t, "the most, "+name, got, err, most, digest(noise(most)))
			path := fmt.Sprintf("/open/more-%t-%t", http2, declared)
			got, err = upload(t.Context(), s, c, http2, declared, request{path: path, body: noise(most + 1), length: most + 1})
			refusedAs(t, "one byte more, "+name, got, err, 413, "payload_too_large")
			if n := s.Upstream.CountsOf(path).Completed; n != 0 {
				t.Errorf("one byte more, %s: the upstream had %d whole bodies, want 0", name, n)
			}
		}
	})
	write("sys/fs/cgroup/memory.current", "999000000\n")
	eventually(t, "critical pressure", func() bool { return severity() == "critical" })
	protocols(t, func(t *testing.T, c *http.Client) {
		seen, refused := s.Upstream.CountsOf("/open/pressed").Seen, int64(0)
		const asked = 20
		for i := range asked {
			r := request{path: "/open/pressed"}
			if i%2 == 1 {
				r = request{method: "POST", path: "/open/pressed", body: strings.NewReader("hello"), length: 5}
			}
			if got, err := send(t.Context(), s, c, r); err != nil || got.status != 200 {
				refused++
				refusedAs(t, r.method+" under critical pressure", got, err, 503, "resource_pressure")
			}
		}
		// A trickle goes on, so that a process that gets no requests collects its garbage at some time.
		if passed := s.Upstream.CountsOf("/open/pressed").Seen - seen; refused < asked/4 || passed != asked-refused {
			t.Errorf("critical pressure refused %d of %d, and the upstream saw %d; want a quarter refused at the least and the rest seen", refused, asked, passed)
		}
	})
	write("sys/fs/cgroup/memory.current", "500000000\n")
	eventually(t, "normal pressure", func() bool { return severity() == "normal" })
	passed(t, "after it", must(t, s, client(t, false), request{path: "/open/after"}), nil, 0, digest(strings.NewReader("")))
}

// TestLettingGoNeedsNoRoutesOfItsOwn: where Envoy sends bodies all the same, since its routes are not those that are printed, such a
// request goes on with the headers' answer too, whatever of its body has been sent by then.
func TestLettingGoNeedsNoRoutesOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed, stack.ModeFullDuplex, stack.ModeBuffered} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "clusters: {open: {lanes: {mode: off}}}", Envoy: []func(*stack.Bootstrap) error{
				func(b *stack.Bootstrap) error { return b.UseMode(mode) },
				func(b *stack.Bootstrap) error {
					return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
						host := m.GetRouteConfig().VirtualHosts[0]
						var kept []*routev3.Route
						for _, r := range host.Routes {
							if len(r.Match.Headers) == 0 || r.Match.Headers[0].Name != "content-length" {
								kept = append(kept, r)
							}
						}
						if len(kept) == len(host.Routes) {
							return fmt.Errorf("no route is for a content-length")
						}
						host.Routes = kept
						return nil
					})
				}}})
			for _, http2 := range []bool{false, true} {
				for _, size := range []int64{0, 1, 4096, 32 << 10} {
					got, err := upload(t.Context(), s, client(t, http2), http2, true, request{path: "/open/x", body: noise(size), length: size})
					passed(t, fmt.Sprintf("%d bytes, HTTP/2 %t", size, http2), got, err, size, digest(noise(size)))
				}
			}
		})
	}
}

// TestFramedBodiesAreCountedByTheirLength: with bytes.count: framed a declared body does not come to the sidecar and is charged in
// full before the upstream is contacted; one whose length is not declared, or not well, is counted as it arrives.
func TestFramedBodiesAreCountedByTheirLength(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {count: framed, hardMaxBody: 6MiB, budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	protocols(t, func(t *testing.T, c *http.Client) {
		http2 := strings.HasSuffix(t.Name(), "2")
		for size, most := range map[int64]int64{5: 2, 300 << 10: 2, 5 * mebibyte: 2} {
			for _, path := range []string{"/v1/responses", "/default"} {
				before := messages(t, s)
				got, err := upload(t.Context(), s, c, http2, true, request{path: path, body: noise(size), length: size})
				passed(t, fmt.Sprintf("%d bytes", size), got, err, size, digest(noise(size)))
				if n := messages(t, s) - before; n > most {
					t.Errorf("%d bytes to %s: %d messages, want at most %d, for both headers", size, path, n, most)
				}
			}
		}
		got, err := upload(t.Context(), s, c, http2, true, request{path: "/declared", body: zeros(7 * mebibyte), length: 7 * mebibyte})
		refusedAs(t, "7 MiB declared", got, err, 413, "payload_too_large")
		if n := s.Upstream.CountsOf("/declared").Seen; n != 0 {
			t.Errorf("the upstream saw %d requests that declared too much, want 0", n)
		}
		got, err = upload(t.Context(), s, c, http2, false, request{path: "/undeclared", body: zeros(7 * mebibyte)})
		refusedAs(t, "7 MiB undeclared", got, err, 413, "payload_too_large")
	})
	raw := dialRaw(t, s)
	before := messages(t, s)
	raw.say(t, "POST /zeros HTTP/1.1\nHost: t\nContent-Length: 0000000005\n\nhello")
	passed(t, "a length with zeros before it", raw.mustAnswer(t, "POST"), nil, 5, digest(strings.NewReader("hello")))
	if n := messages(t, s) - before; n < 3 {
		t.Errorf("a length with zeros before it: %d messages, want its body counted", n)
	}
	// What is in flight is reserved, although no byte of it comes to the sidecar.
	held := dialRaw(t, s)
	held.say(t, "POST /held?ms=20000 HTTP/1.1\nHost: t\nContent-Length: %d\n\n%s", 5*mebibyte, text(5*mebibyte))
	eventually(t, "the first body", func() bool { return s.Upstream.CountsOf("/held").Completed == 1 })
	got, err := upload(t.Context(), s, nil, false, true, request{path: "/second", body: zeros(4 * mebibyte), length: 4 * mebibyte})
	refusedAs(t, "4 MiB beside 5 of 8", got, err, 503, "queue_timeout")
	held.Close()
}

// TestFramedUploadsEnd: nobody sees how a framed body arrives, so Envoy bounds for how long it may hold what it has reserved.
func TestFramedUploadsEnd(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {count: framed, uploadMaxTime: 1s}"})
	raw := dialRaw(t, s)
	begin := time.Now()
	raw.say(t, "POST /stalls HTTP/1.1\nHost: t\nContent-Length: %d\n\nhello", mebibyte)
	if got, err := raw.answer("POST"); err == nil && got.status != 408 {
		t.Errorf("a stalled upload got %d, want 408", got.status)
	}
	if took := time.Since(begin); took < 900*time.Millisecond {
		t.Errorf("it ended after %v, want uploadMaxTime, 1 s", took)
	}
	if n := s.Upstream.CountsOf("/stalls").Completed; n != 0 {
		t.Errorf("the upstream had %d whole bodies, want 0", n)
	}
}
