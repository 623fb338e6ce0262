package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestHeadersThatComeAtOnceAreSaid: where the headers are taken for the first token and come at once however many run,
// health, a metric and the log say so; with the witness in their place nothing is wrong.
func TestHeadersThatComeAtOnceAreSaid(t *testing.T) {
	t.Parallel()
	for firstToken, want := range map[string]struct {
		signal string
		atOnce bool
		metric string
	}{
		"headers": {"headers", true, `headgate_lane_headers_at_once{route_cluster="default"} 1`},
		"witness": {"witness", false, `headgate_lane_headers_at_once{route_cluster="default"} 0`},
	} {
		t.Run(firstToken, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "clusters: {default: {lanes: {mode: enforce, firstToken: " + firstToken + ", initialLimit: 1000}}}"})
			c := client(t, false)
			some := func() { // one at a time, and some eight together
				for range 10 {
					must(t, s, c, request{path: "/drip?n=2&ms=150"})
				}
				together := &source{tenant: "tenant", rate: 25, request: get("/drip?n=2&ms=150")}
				drive(t, s, 3*time.Second, together)
				if together.served != together.asked {
					t.Errorf("%d of %d served, want all", together.served, together.asked)
				}
			}
			some()
			if want.atOnce { // a busy machine delays some
				eventually(t, "the finding", func() bool {
					if lanesOf(t, s, "default")["headersAtOnce"] == true {
						return true
					}
					some()
					return false
				})
			}
			lanes := lanesOf(t, s, "default")
			if lanes["signal"] != want.signal || lanes["headersAtOnce"] != want.atOnce {
				t.Errorf("signal %v, headersAtOnce %v; want %s, %v", lanes["signal"], lanes["headersAtOnce"], want.signal, want.atOnce)
			}
			metrics, err := s.Sidecar.Get(t.Context(), "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{want.metric, `headgate_lane_signal{route_cluster="default",signal="` + want.signal + `"} 1`} {
				if !strings.Contains(metrics, line) {
					t.Errorf("no metric %s", line)
				}
			}
			if got := strings.Contains(s.Sidecar.Tail(), "response headers come at once"); got != want.atOnce {
				t.Errorf("in the log: %v, want %v\n%s", got, want.atOnce, s.Sidecar.Tail())
			}
		})
	}
}

// TestNoStreamNoLessServed: of two tenants with a backlog of the same requests, the one that does not have its answers
// streamed is served as many.
func TestNoStreamNoLessServed(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: fixedLimit("chat", 24)})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	var served [2]atomic.Int64
	var all sync.WaitGroup
	for tenant := range served {
		for range 30 {
			all.Go(func() {
				c := client(t, false)
				for ctx.Err() == nil {
					r := chat(tenant == 0, 20, 20)
					r.headers["x-tenant-id"] = fmt.Sprint(tenant)
					if got, err := send(t.Context(), s, c, r); err != nil || got.status != 200 {
						t.Errorf("tenant %d: %d, %v; want 200", tenant, got.status, err)
						return
					}
					served[tenant].Add(1)
				}
			})
		}
	}
	all.Wait()
	streams, whole := float64(served[0].Load()), float64(served[1].Load())
	if ratio := max(streams/whole, whole/streams); ratio > 1.25 {
		t.Errorf("with streams %v served, without %v: a factor of %.2f, want at most 1.25", streams, whole, ratio)
	}
	t.Logf("with streams %v served, without %v", streams, whole)
}
