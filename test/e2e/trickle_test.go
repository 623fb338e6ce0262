package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// trickle is a client that takes the whole byte budget and then sends next to nothing. It sends again when it is refused.
type trickle struct {
	uploads  int
	declared bool
	burst    int64 // of each upload, at once
	rate     int   // bytes a second after that
	media    string
	path     string
}

const trickleBudget = 8 * mebibyte

// run trickles until the context ends.
func (k trickle) run(ctx context.Context, t *testing.T, s *stack.Stack) *sync.WaitGroup {
	var all sync.WaitGroup
	for range k.uploads {
		c := client(t, false) // over HTTP/2 the upstream answers what is called gRPC at once
		all.Go(func() {
			for ctx.Err() == nil {
				k.once(ctx, s, c)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return &all
}

func (k trickle) once(ctx context.Context, s *stack.Stack, c *http.Client) {
	size := int64(trickleBudget / k.uploads)
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Envoy.URL()+k.path, io.MultiReader(zeros(k.burst), &slowly{ctx, k.rate}))
	if err != nil {
		return
	}
	out.Header.Set("Content-Type", k.media)
	out.ContentLength = -1
	if k.declared {
		out.ContentLength = size
	}
	in, err := c.Do(out)
	if err != nil {
		return // cut, or the test is over
	}
	defer in.Body.Close()
	_, _ = io.Copy(io.Discard, in.Body) // ends with the context
}

// slowly yields so many zero bytes a second until its context ends.
type slowly struct {
	ctx  context.Context
	rate int
}

func (r *slowly) Read(p []byte) (int, error) {
	const tick = 100 * time.Millisecond
	select {
	case <-time.After(tick):
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
	n := min(len(p), r.rate/int(time.Second/tick))
	clear(p[:n])
	return n, nil
}

// TestTricklesPinNothing: a client holds the whole byte budget and sends just enough to look alive. Others' heavy requests are
// served again after bytes.uploadMaxTime, whatever the upload declares, whatever it calls itself, and although its response has
// begun to stream.
func TestTricklesPinNothing(t *testing.T) {
	t.Parallel()
	const json = "application/json"
	for name, k := range map[string]trickle{
		"one upload":            {1, true, 0, 600, json, "/trickle"},
		"two uploads":           {2, true, 0, 1400, json, "/trickle"},
		"nothing declared":      {1, false, trickleBudget - 200_000, 600, json, "/trickle"},
		"called gRPC":           {1, true, 0, 600, "application/grpc", "/trickle"},
		"called gRPC, no bytes": {1, true, 0, 0, "application/grpc", "/trickle"},
		"while a response runs": {1, true, 0, 600, json, "/early"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: fmt.Sprintf("bytes: {budget: {override: %d}, uploadTimeout: 1s, uploadMaxTime: 5s, queue: {calmWait: 100ms}, releaseAt: responseEnd}", trickleBudget)})
			ctx, cancel := context.WithCancel(t.Context())
			attack := k.run(ctx, t, s)
			defer attack.Wait()
			defer cancel()
			eventually(t, "the budget to be taken", func() bool { return health(t, s).ChatAdmission.InflightBytes > trickleBudget-300_000 })
			// Without the rate that goes by what is held, 8 MiB at 600 bytes a second last for four hours.
			c := client(t, false)
			eventually(t, "another's heavy request to be served", func() bool {
				got, err := send(t.Context(), s, c, request{method: "POST", path: "/honest", body: noise(mebibyte), length: mebibyte})
				return err == nil && got.status == 200
			})
		})
	}
}
