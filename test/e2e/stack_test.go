package e2e

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// TestStackOverTCPAndSocket shows that both ways to reach the sidecar carry requests and refusals.
func TestStackOverTCPAndSocket(t *testing.T) {
	t.Parallel()
	for name, socket := range map[string]bool{"TCP": false, "socket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Socket: socket, Overlay: "bytes: {hardMaxBody: 1MiB}"})
			protocols(t, func(t *testing.T, c *http.Client) {
				got := must(t, s, c, request{method: "POST", path: "/x", body: zeros(1 << 20), length: 1 << 20})
				var e stack.Echo
				if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 200 || e.BodyBytes != 1<<20 {
					t.Errorf("1 MiB = %d, %d bytes at the upstream (%v), want 200 and 1048576", got.status, e.BodyBytes, err)
				}
				for what, length := range map[string]int64{"declared": 1<<20 + 1, "undeclared": 0} {
					got := must(t, s, c, request{method: "POST", path: "/" + what, body: zeros(1<<20 + 1), length: length})
					if got.status != 413 || got.reason() != "payload_too_large" {
						t.Errorf("1 MiB + 1, %s = %d %q, want 413 payload_too_large", what, got.status, got.reason())
					}
				}
				if n := s.Upstream.CountsOf("/declared").Seen; n != 0 {
					t.Errorf("the upstream saw %d requests of a declared length above the limit, want 0", n)
				}
			})
		})
	}
}

// TestEveryBodyMode shows that bodies pass whole, and too large ones do not, however Envoy hands them over.
func TestEveryBodyMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed, stack.ModeFullDuplex, stack.ModeBuffered, stack.ModeBufferedPartial, stack.ModeNone} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}", Envoy: []func(*stack.Bootstrap) error{
				func(b *stack.Bootstrap) error { b.BufferLimit(8 << 20); return b.UseMode(mode) },
			}})
			protocols(t, func(t *testing.T, c *http.Client) {
				for _, size := range []int64{0, 1, 100_000, 1 << 20} {
					got := must(t, s, c, request{method: "POST", path: "/passes", body: zeros(size)})
					var e stack.Echo
					if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 200 || e.BodyBytes != size {
						t.Errorf("%d bytes = %d, %d at the upstream (%v), want 200 and all", size, got.status, e.BodyBytes, err)
					}
				}
				got := must(t, s, c, request{method: "POST", path: "/refused", body: zeros(1<<20 + 1), length: 1<<20 + 1})
				if got.status != 413 || got.reason() != "payload_too_large" {
					t.Errorf("declared 1 MiB + 1 = %d %q, want 413 payload_too_large", got.status, got.reason())
				}
			})
		})
	}
}
