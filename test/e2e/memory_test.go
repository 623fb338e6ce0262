package e2e

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestMemoryStaysFlat: 64 uploads of 50 MiB at once, half of them over HTTP/2, keep the sidecar under 64 MiB above
// idle. Bodies pass; none is kept. All are half done at the same time.
func TestMemoryStaysFlat(t *testing.T) {
	const uploads, size, allowed = 64, 50 * mebibyte, 64 << 10 // KiB
	s := start(t, stack.Options{Binary: plainSidecar(t), Overlay: "bytes: {budget: {override: 4GiB, cap: 4GiB}}", Envoy: []func(*stack.Bootstrap) error{
		// Half of the default: no stream may starve while the others are served.
		func(b *stack.Bootstrap) error { return b.MessageTimeout(5 * time.Second) },
	}})
	must(t, s, client(t, false), request{method: "POST", body: zeros(mebibyte)}) // loads what one request needs
	before := memory(t, s, "VmRSS")

	var half, all sync.WaitGroup
	half.Add(uploads)
	for i := range uploads {
		all.Go(func() {
			http2 := i%2 == 0
			body := &paused{Reader: zeros(size), left: size / 2, half: &half}
			c := client(t, http2)
			c.Timeout = 5 * time.Minute // 3 GiB are hashed by an upstream under the race detector
			got, err := upload(t.Context(), s, c, http2, true, request{path: "/memory", body: body, length: size})
			body.finish()
			if err != nil || got.status != 200 {
				t.Errorf("upload %d = %d %q (%v), want 200", i, got.status, got.reason(), err)
			}
		})
	}
	half.Wait()
	if b := health(t, s).ChatAdmission; b.InflightBytes != uploads*size {
		t.Errorf("%d bytes reserved with all uploads half done, want %d", b.InflightBytes, int64(uploads*size))
	}
	all.Wait()
	peak := memory(t, s, "VmHWM")
	t.Logf("resident: %d KiB idle, %d KiB at the most, %d KiB above", before, peak, peak-before)
	if peak-before > allowed {
		t.Errorf("the sidecar took %d KiB above its %d KiB with %d uploads of 50 MiB, want at most %d", peak-before, before, uploads, allowed)
	}
}

// paused waits for all the others when half of it has been read.
type paused struct {
	io.Reader
	left int64
	half *sync.WaitGroup
	once sync.Once
}

func (p *paused) Read(b []byte) (int, error) {
	if p.left <= 0 {
		p.finish()
		p.half.Wait()
	}
	n, err := p.Reader.Read(b)
	p.left -= int64(n)
	return n, err
}

// finish lets the others go on; an upload that failed early must.
func (p *paused) finish() { p.once.Do(p.half.Done) }

// memory returns a size in KiB of the sidecar's process status: VmRSS is resident now, VmHWM was at the most.
func memory(t *testing.T, s *stack.Stack, name string) (kib int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Sidecar.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), name+":")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("read %s of the sidecar: %v", name, err)
	}
	return kib
}
