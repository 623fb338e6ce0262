package e2e

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// blanks are n blanks, which JSON may have anywhere and which take no memory.
func blanks(n int64) io.Reader { return io.LimitReader(blankReader{}, n) }

type blankReader struct{}

func (blankReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// plainSidecar is a binary without the race detector, which takes memory of its own.
func plainSidecar(t *testing.T) string {
	t.Helper()
	if len(buildFlags) == 0 {
		return sidecarBinary
	}
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "extproc")
	if err := stack.BuildSidecar(t.Context(), root, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

// TestFullDuplexKeepsMemoryFlat: Envoy gives the chunks of a body away, and the sidecar hands each back before it takes the
// next. Whether the request passes, is refused, or waits first, it takes no memory for the body.
func TestFullDuplexKeepsMemoryFlat(t *testing.T) {
	const size, most, allowed = 256 * mebibyte, "512MiB", 64 << 10 // the last in KiB
	binary := plainSidecar(t)
	for _, c := range []struct {
		name    string
		overlay string
		busy    bool // another request has begun
		status  int
		reason  string
	}{
		{"admitted", "bytes: {hardMaxBody: " + most + ", budget: {override: 1GiB}}", false, 200, ""},
		{"above the maximum", "bytes: {hardMaxBody: 200MiB, budget: {override: 1GiB}}", false, 413, "payload_too_large"},
		{"the budget is too small", "bytes: {hardMaxBody: " + most + ", budget: {override: 220MiB}}", false, 413, "body_exceeds_budget"},
		{"the budget is taken", "bytes: {hardMaxBody: " + most + ", budget: {override: 270MiB}, releaseAt: responseEnd}", true, 503, "queue_timeout"},
		{"the lane is taken", "bytes: {hardMaxBody: " + most + ", budget: {override: 1GiB}}\n" +
			"clusters: {default: {lanes: {mode: enforce, minLimit: 1000, initialLimit: 1000, maxLimit: 1000, maxShare: 1, maxWait: 2s}}}", true, 503, "admission_deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, stack.Options{Binary: binary, Overlay: c.overlay, Envoy: []func(*stack.Bootstrap) error{
				func(b *stack.Bootstrap) error { return b.UseMode(stack.ModeFullDuplex) },
			}})
			must(t, s, client(t, true), request{method: "POST", path: "/warm", body: zeros(mebibyte)}) // loads what one request needs
			if c.busy {
				holder := dialRaw(t, s)
				holder.say(t, "POST /slow?ms=20000 HTTP/1.1\nHost: t\nContent-Length: %d\n\n", 30*mebibyte)
				if _, err := io.Copy(holder, zeros(30*mebibyte)); err != nil {
					t.Fatal(err)
				}
				eventually(t, "another to be on its way", func() bool { return health(t, s).Exchanges.InFlight > 0 })
				defer holder.Close()
			}
			for _, http2 := range []bool{false, true} {
				cl := client(t, http2)
				before := memory(t, s, "VmRSS")
				body := io.MultiReader(strings.NewReader(`{"messages":[`), blanks(size), strings.NewReader(`]}`))
				got, err := upload(t.Context(), s, cl, http2, false, request{path: "/duplex", body: body})
				if err != nil || got.status != c.status || got.reason() != c.reason {
					t.Errorf("HTTP/2 %t: %d %q (%v), want %d %q", http2, got.status, got.reason(), err, c.status, c.reason)
				}
				peak := memory(t, s, "VmHWM")
				t.Logf("HTTP/2 %t, resident: %d KiB before, %d KiB at the most, %d KiB above", http2, before, peak, peak-before)
				if peak-before > allowed {
					t.Errorf("HTTP/2 %t: the sidecar took %d KiB above its %d KiB for a body of 256 MiB, want at most %d", http2, peak-before, before, allowed)
				}
			}
		})
	}
}
