package e2e

import (
	"bufio"
	"net/http"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/headgate/headgate/internal/stack"
)

// streaming sends a request to an upstream that answers the headers at once and its first event a while later.
func streaming(t *testing.T, s *stack.Stack, path string) *http.Response {
	t.Helper()
	r, err := client(t, false).Get(s.Envoy.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

// lanesOf returns the lanes of a route cluster in the health document.
func lanesOf(t *testing.T, s *stack.Stack, cluster string) map[string]any {
	t.Helper()
	health, err := s.Sidecar.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lanes, _ := health["adaptiveAdmission"].(map[string]any)[cluster].(map[string]any)
	return lanes
}

// TestWitnessThroughEnvoy: on an upstream that answers the headers at once, what a request costs drops with the first byte of
// the body, not with the headers, and the response arrives as it was sent.
func TestWitnessThroughEnvoy(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: fixedLimit("default", 64)})
	// These take so long that the next one's first token is not expected before its headers are seen.
	first := streaming(t, s, "/drip?n=1&ms=400")
	if _, err := bufio.NewReader(first.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first witness", func() bool {
		r := streaming(t, s, "/drip?n=1&ms=400")
		_, err := bufio.NewReader(r.Body).ReadString('\n')
		return err == nil && lanesOf(t, s, "default")["signal"] == "witness"
	})
	eventually(t, "nothing to run", func() bool { return lanesOf(t, s, "default")["activeCost"] == 0.0 })

	const pause = 1500
	began := time.Now()
	r := streaming(t, s, "/drip?n=2&ms=1500")
	if took := time.Since(began); took >= pause*time.Millisecond {
		t.Fatalf("the headers took %v, want them at once", took)
	}
	if got := lanesOf(t, s, "default")["activeCost"].(float64); got <= 1 && time.Since(began) < pause*time.Millisecond {
		t.Errorf("between headers and first event: active cost %v, want the prompt's, above 1", got)
	}
	body := bufio.NewReader(r.Body)
	event, err := body.ReadString('\n')
	if err != nil || event != "data: {\"i\":0}\n" {
		t.Fatalf("first event %q, %v", event, err)
	}
	eventually(t, "the price to drop while the second event is due", func() bool { return lanesOf(t, s, "default")["activeCost"].(float64) <= 1 })
	if _, err := body.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if event, err = body.ReadString('\n'); err != nil || event != "data: {\"i\":1}\n" {
		t.Errorf("second event %q, %v", event, err)
	}
}

// TestResponsesNeedNoWitness: where nothing that is a sidecar stands behind the witness filter, responses arrive whole, and
// the limit learns from headers.
func TestResponsesNeedNoWitness(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]string{"answers as no processor does": "default", "unknown": "nowhere"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: fixedLimit("default", 64), Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
				return b.Witness(func(p *extprocv3.ExternalProcessor) { p.GrpcService.GetEnvoyGrpc().ClusterName = cluster })
			}}})
			for range 3 {
				got := must(t, s, client(t, false), request{path: "/drip?n=3&ms=20"})
				if want := "data: {\"i\":0}\n\ndata: {\"i\":1}\n\ndata: {\"i\":2}\n\n"; got.status != 200 || got.body != want {
					t.Errorf("%d %q, want 200 %q", got.status, got.body, want)
				}
			}
			if got := lanesOf(t, s, "default")["signal"]; got != "headers" {
				t.Errorf("signal %v, want headers", got)
			}
		})
	}
}
