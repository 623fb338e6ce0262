package extproc

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// virtual is a server without a network, so that it can run in virtual time.
type virtual struct {
	t      *testing.T
	config *config.Config
	server *Server
	bytes  *budget.Controller
	lanes  *adaptive.Registry
	severe memory.Severity // of the pressure
	seen   *ledger
	all    sync.WaitGroup // exchanges
}

// newVirtual starts a server with a byte budget. It must be closed.
func newVirtual(t *testing.T, bytes int64, edit func(*config.Config)) *virtual {
	t.Helper()
	c := config.Default()
	c.Tenant.Sources = []config.Source{{Header: "x-tenant-id"}}
	edit(c)
	v := &virtual{t: t, config: c, seen: &ledger{traces: map[string]trace.TraceID{}, decisions: map[string]int{}, wouldReject: map[string]int{}}}
	pressure := func() memory.Pressure { return memory.Pressure{Severity: v.severe, Healthy: true} }
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	leases, err := lease.New(c.Leases, c.Principals, lease.Options{Log: log})
	if err != nil {
		t.Fatalf("lease service: %v", err)
	}
	v.bytes = budget.New(c.Bytes, memory.Budget{Bytes: bytes}, pressure)
	v.lanes = adaptive.NewRegistry(func(name string) adaptive.Settings { return c.Cluster(name).Lanes }, 0)
	v.server = NewServer(c, Dependencies{
		Bytes: v.bytes, Pressure: pressure, Lanes: v.lanes, Parents: adaptive.NewParentTokens(nil, time.Minute, 3), Leases: leases,
		Observer: v.seen, Log: log,
	})
	return v
}

// close waits for all exchanges and checks that nothing is left of them.
func (v *virtual) close() {
	v.t.Helper()
	v.all.Wait()
	v.server.Close()
	_ = v.server.leases.Close()
	v.lanes.Shutdown()
	if s := v.bytes.Snapshot(); s.InflightBytes != 0 || s.Waiting != 0 || s.QueuedBytes != 0 || s.ActiveHeavy != 0 {
		v.t.Errorf("at the end %d bytes are reserved, %d waiters with %d bytes, %d heavy, want none", s.InflightBytes, s.Waiting, s.QueuedBytes, s.ActiveHeavy)
	}
}

// dialogue is one exchange on a virtual server, seen from Envoy. It is the server's stream too.
type dialogue struct {
	ctx    context.Context
	cancel context.CancelFunc
	in     chan *extprocv3.ProcessingRequest
	out    chan *extprocv3.ProcessingResponse
	ended  chan struct{}
}

// open begins an exchange.
func (v *virtual) open() *dialogue {
	d := &dialogue{in: make(chan *extprocv3.ProcessingRequest), out: make(chan *extprocv3.ProcessingResponse, 10_000), ended: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	v.all.Go(func() {
		defer close(d.ended)
		defer d.cancel()
		_ = v.server.process(d)
	})
	return d
}

// say sends a message, and reports false when the exchange is over.
func (d *dialogue) say(m *extprocv3.ProcessingRequest) bool {
	select {
	case d.in <- m:
		return true
	case <-d.ended:
		return false
	}
}

// hears waits for the next answer, nil when there is none any more.
func (d *dialogue) hears() *extprocv3.ProcessingResponse {
	select {
	case a := <-d.out:
		return a
	case <-d.ended:
		select {
		case a := <-d.out:
			return a
		default:
			return nil
		}
	}
}

func (d *dialogue) Context() context.Context     { return d.ctx }
func (d *dialogue) SetHeader(metadata.MD) error  { return nil }
func (d *dialogue) SendHeader(metadata.MD) error { return nil }
func (d *dialogue) SetTrailer(metadata.MD)       {}

func (d *dialogue) RecvMsg(m any) error {
	select {
	case next := <-d.in:
		data, err := proto.Marshal(next)
		if err != nil {
			return err
		}
		return m.(*wire.Message).Decode(mem.BufferSlice{mem.SliceBuffer(data)})
	case <-d.ctx.Done():
		return d.ctx.Err()
	}
}

func (d *dialogue) SendMsg(m any) error {
	data, err := wire.NewCodec().Marshal(m)
	if err != nil {
		return err
	}
	var a extprocv3.ProcessingResponse
	if err := proto.Unmarshal(data.Materialize(), &a); err != nil {
		return err
	}
	d.out <- &a
	return nil
}

// filler is what bodies are made of.
var filler = strings.Repeat("x", 64<<10)

// attack is what one client does, over and over, with several requests at a time.
type attack struct {
	requests int     // at a time
	declared int64   // 0 is not declared
	bytes    int64   // of a request
	burst    int64   // sent at once
	rate     float64 // bytes a second after that
	media    string
}

func (a attack) String() string {
	return fmt.Sprintf("%d requests of %d bytes (%d declared) as %s, %d at once and then %.0f a second", a.requests, a.bytes, a.declared, a.media, a.burst, a.rate)
}

// randomAttack is one that holds the whole budget if it can.
func randomAttack(r *rand.Rand, budget int64, maxTime time.Duration) attack {
	a := attack{requests: 1 << r.IntN(4), media: []string{"application/json", "text/plain", "application/grpc", "application/x-www-form-urlencoded"}[r.IntN(4)]}
	a.bytes = budget / int64(a.requests)
	if r.IntN(3) > 0 {
		a.declared = a.bytes
	}
	if a.declared == 0 || r.IntN(2) == 0 {
		a.burst = int64(float64(a.bytes) * r.Float64() * 0.99)
	}
	switch pace := float64(a.bytes) / maxTime.Seconds(); r.IntN(4) {
	case 0: // nothing more
	case 1:
		a.rate = 600 // above bytes.uploadMinRate
	default: // around the rate that is asked for
		a.rate = pace * (0.3 + 2*r.Float64())
	}
	return a
}

// run attacks until the context ends.
func (a attack) run(ctx context.Context, v *virtual) {
	var all sync.WaitGroup
	for range a.requests {
		all.Go(func() {
			for ctx.Err() == nil {
				a.once(ctx, v)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

func (a attack) once(ctx context.Context, v *virtual) {
	d := v.open()
	defer d.cancel()
	headers := []string{":method", "POST", "content-type", a.media, "x-tenant-id", "attacker"}
	if a.declared > 0 {
		headers = append(headers, "content-length", fmt.Sprint(a.declared))
	}
	d.say(rh(early, false, headers...))
	sent := int64(0)
	send := func(n int64) bool {
		for n = min(n, a.bytes-sent); n > 0; {
			piece := min(n, 64<<10)
			sent, n = sent+piece, n-piece
			if !d.say(rb(filler[:piece], sent == a.bytes)) {
				return false
			}
		}
		return true
	}
	const tick = 250 * time.Millisecond
	owed := 0.0
	for more := send(a.burst); more && sent < a.bytes && ctx.Err() == nil; more = send(int64(owed)) {
		owed -= float64(int64(owed))
		select {
		case <-time.After(tick):
			owed += a.rate * tick.Seconds()
		case <-d.ended:
			return
		case <-ctx.Done():
			return
		}
	}
	d.say(sh("200", true))
}

// TestOneClientCannotPinTheBudget: one client may hold all of the byte budget, declared or not, as whatever it says its body
// is, at whatever rate. Others' heavy requests are served again within bytes.uploadMaxTime and the time-out after which a
// slow upload is noticed, for as long as the attack lasts.
func TestOneClientCannotPinTheBudget(t *testing.T) {
	const size, maxTime, timeout = 4 * mib, 20 * time.Second, 2 * time.Second
	const bound = maxTime + 2*timeout
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		a := randomAttack(r, size, maxTime)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVirtual(t, size, func(c *config.Config) {
					c.Bytes.UploadTimeout, c.Bytes.UploadMaxTime = timeout, maxTime
					c.Bytes.HardMaxBody = 8 * mib
				})
				v.severe = memory.Severity(seed % 2) // normal or high, which lets bodies wait for longer
				ctx, cancel := context.WithCancel(context.Background())
				var attacker sync.WaitGroup
				attacker.Go(func() { a.run(ctx, v) })
				time.Sleep(time.Second)
				served, longest := time.Now(), time.Duration(0)
				for end := time.Now().Add(3 * bound); time.Now().Before(end); time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond) {
					if v.serves(300_000) {
						served = time.Now()
					}
					longest = max(longest, time.Since(served))
				}
				cancel()
				attacker.Wait()
				if longest > bound {
					t.Errorf("seed %d: nobody else was served for %v, want at most %v, beside %v", seed, longest, bound, a)
				}
				v.close()
			})
		})
	}
}

// serves sends an honest request and reports whether it was admitted.
func (v *virtual) serves(bytes int) bool {
	d := v.open()
	defer func() { d.cancel(); <-d.ended }()
	d.say(rh(early, false, ":method", "POST", "content-type", "application/octet-stream", "x-tenant-id", "honest", "content-length", fmt.Sprint(bytes)))
	d.say(rb(bytesOf(bytes), true))
	if a := d.hears(); a == nil || kind(a) != "RH" {
		return false
	}
	d.say(sh("200", true))
	return true
}
