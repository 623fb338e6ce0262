package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// perSecond is the rate of a steady load.
const perSecond = 200

// steadyLoad is load at a fixed rate, whatever becomes of the answers: requests without a body, small ones with and
// without a declared length, responses that take a while, and uploads, over HTTP/1.1 and HTTP/2.
type steadyLoad struct {
	target  func() *stack.Stack
	upload  int64           // size of the uploads
	clients [2]*http.Client // HTTP/1.1 and HTTP/2
	began   time.Time
	stop    context.CancelFunc
	all     sync.WaitGroup

	mu      sync.Mutex
	phase   string
	sent    int
	slowest time.Duration
	failed  map[string]int // by phase and answer
}

func startLoad(t *testing.T, upload int64, target func() *stack.Stack) *steadyLoad {
	ctx, stop := context.WithCancel(t.Context())
	l := &steadyLoad{
		target: target, upload: upload, clients: [2]*http.Client{client(t, false), client(t, true)}, began: time.Now(), stop: stop,
		phase: "at first", failed: map[string]int{},
	}
	l.all.Go(func() {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				l.all.Go(func() { l.request(context.WithoutCancel(ctx), i) })
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

func (l *steadyLoad) request(ctx context.Context, i int) {
	r := []request{
		{path: "/x"},
		{method: "POST", path: "/v1/responses", body: strings.NewReader(text(2000)), length: 2000},
		{path: "/slow?ms=400"},
		{method: "POST", path: "/x", body: strings.NewReader("{}")},
		{method: "POST", path: "/x", body: noise(l.upload), length: l.upload},
	}[i%5]
	l.mu.Lock()
	phase := l.phase
	l.mu.Unlock()
	began := time.Now()
	got, err := send(ctx, l.target(), l.clients[i/5%2], r)
	took := time.Since(began)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	l.slowest = max(l.slowest, took)
	if err != nil || got.status/100 != 2 {
		l.failed[fmt.Sprintf("%s: %s %s of %d bytes = %d %s (%v)", phase, r.method, r.path, r.length, got.status, got.reason(), err)]++
	}
}

// enter names what happens from now on.
func (l *steadyLoad) enter(phase string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}

// end ends the load, waits for every answer and checks that all were 2xx.
func (l *steadyLoad) end(t *testing.T) {
	t.Helper()
	l.stop()
	took := time.Since(l.began)
	l.all.Wait()
	t.Logf("%d requests in %v, the slowest in %v", l.sent, took, l.slowest)
	if len(l.failed) > 0 {
		t.Errorf("of %d requests failed: %v, want none", l.sent, l.failed)
	}
	if rate := float64(l.sent) / took.Seconds(); rate < perSecond/4 {
		t.Errorf("%.0f requests a second, want about %d: the load was too thin to show anything", rate, perSecond)
	}
}

// reload changes the configuration a few times and sends SIGHUP.
func reload(t *testing.T, s *stack.Stack, overlay string) {
	t.Helper()
	for i := range 3 {
		if err := s.Reconfigure("", fmt.Sprintf("%s\nbytes: {hardMaxBody: %dMiB}", overlay, 10+i)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a reload", func() bool { return health(t, s).Config.Count > int64(i) })
	}
	if err := s.Sidecar.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// drain ends the sidecar as Kubernetes does.
func drain(t *testing.T, s *stack.Stack) {
	t.Helper()
	if err := s.Sidecar.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ends(t, s, 20*time.Second, "an end under load soon after the drain window of 2 s")
}

// A drain window as long as a reload or a look at readiness takes on a busy machine, and longer. Nothing waits in a lane:
// who does when the sidecar ends is refused, by design.
const quickDrain = "shutdown: {drain: 2s, grace: 20s}\nclusters: {chat: {lanes: {mode: shadow}}}"

// TestNoRequestFailsOverRestartInPlace: at 200 requests a second none gets anything but 2xx while the sidecar reloads,
// drains, ends and starts anew on the same address. What finds no sidecar waits in Envoy for the next, as long as
// Envoy has sent no more than 64 KiB of it, its limit for sending again.
//
// Not in parallel with others: a sidecar has to start within the wait.
func TestNoRequestFailsOverRestartInPlace(t *testing.T) {
	for name, socket := range map[string]bool{"TCP": false, "socket": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, stack.Options{Socket: socket, Overlay: quickDrain})
			load := startLoad(t, 50<<10, func() *stack.Stack { return s })
			time.Sleep(500 * time.Millisecond)
			load.enter("reload")
			reload(t, s, quickDrain)
			for _, away := range []time.Duration{0, 300 * time.Millisecond} {
				load.enter(fmt.Sprintf("drain, then %v without a sidecar", away))
				drain(t, s)
				time.Sleep(away)
				restart(t, s)
				load.enter("restarted")
				time.Sleep(500 * time.Millisecond)
			}
			load.end(t)
		})
	}
}

// TestNoRequestFailsOverRollingRestart: the same with two gateways, each an Envoy with its sidecar, whose sidecars reload
// and restart in turn. The load goes to those that were ready some 100 ms ago, as it does behind a Service. Uploads of
// any size are served all the time.
func TestNoRequestFailsOverRollingRestart(t *testing.T) {
	gateways := []*stack.Stack{start(t, stack.Options{Overlay: quickDrain}), start(t, stack.Options{Overlay: quickDrain})}
	var ready atomic.Pointer[[]*stack.Stack]
	look := func() {
		var found []*stack.Stack
		for _, g := range gateways {
			if _, err := g.Sidecar.Get(t.Context(), "/readyz"); err == nil {
				found = append(found, g)
			}
		}
		if len(found) > 0 || ready.Load() == nil { // a Service without endpoints would keep the last ones too
			ready.Store(&found)
		}
	}
	look()
	watched := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			look()
		}
	}()
	defer func() { cancel(); <-watched }()

	var turn atomic.Int64
	load := startLoad(t, 300<<10, func() *stack.Stack {
		targets := *ready.Load()
		return targets[int(turn.Add(1))%len(targets)]
	})
	time.Sleep(500 * time.Millisecond)
	for i, g := range gateways {
		load.enter(fmt.Sprintf("reload of gateway %d", i))
		reload(t, g, quickDrain)
		load.enter(fmt.Sprintf("drain of gateway %d", i))
		drain(t, g)
		restart(t, g)
		load.enter(fmt.Sprintf("gateway %d restarted", i))
		eventually(t, "both gateways to be ready", func() bool { return len(*ready.Load()) == len(gateways) })
	}
	load.end(t)
}

// TestWithoutASidecar: what cannot be sent again is refused at once, everything else after a wait for a sidecar, of which the
// message time-out is no part here.
func TestWithoutASidecar(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "decision: {maxWait: 30s}"}, expectation{gone: true, faults: []string{"streams_failed"}})
	s.Sidecar.Kill()
	for _, c := range []struct {
		size        int64
		least, most time.Duration
	}{{300 << 10, 0, 3 * time.Second}, {50 << 10, 4 * time.Second, 20 * time.Second}} {
		for _, http2 := range []bool{false, true} {
			began := time.Now()
			got, err := upload(t.Context(), s, client(t, http2), http2, true, request{path: "/x", body: noise(c.size), length: c.size})
			if took := time.Since(began); err != nil || got.status != 503 || took < c.least || took > c.most {
				t.Errorf("%d bytes, HTTP/2 %t: %d after %v (%v), want 503 after %v to %v", c.size, http2, got.status, took, err, c.least, c.most)
			}
		}
	}
	if n := s.Upstream.CountsOf("/x").Seen; n != 0 {
		t.Errorf("the upstream saw %d requests, want none", n)
	}
}
