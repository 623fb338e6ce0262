package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Exchange is one simulated request.
type Exchange struct {
	Tenant int
	Size   Size
	// Refused is set by the limiter before it settles a waiting exchange.
	Refused bool

	arrived, forwarded, first time.Duration
	phase                     phase
	job                       job
	handle                    any // the limiter's own
}

type phase uint8

const (
	waiting phase = iota
	prefilling
	generating
	gone
)

// Answer of a limiter to an arrival.
type Answer uint8

// The three answers. A waiting exchange is sent to the run's settled channel later, once.
const (
	Admit Answer = iota
	Wait
	Refuse
)

// Limiter is what a run puts before its upstream.
type Limiter interface {
	Enter(x *Exchange, tenant string) Answer
	Forward(x *Exchange) // it goes to the upstream now
	FirstByte(x *Exchange)
	Leave(x *Exchange, o adaptive.Outcome)
	Abandon(x *Exchange) // the client of a waiting exchange is gone; it is not settled any more
	Limit() (limit, utilization float64)
	Close() error // after the last exchange has left; an error when something is still held
}

// Factory makes a limiter for one run. Waiting exchanges are sent to settled from any goroutine but the caller's.
type Factory func(settled chan<- *Exchange) (Limiter, error)

// Step is a change of conditions in the middle of a run.
type Step struct {
	At time.Duration
	Do func(r *Run)
}

// Setup of one run.
type Setup struct {
	Seed     uint64
	Tenants  []Tenant
	Replay   *Trace // whose arrivals to stretch to the rate; nil = Poisson
	Upstream Upstream
	Timeout  time.Duration // the client's, from forwarding; 0 = none
	Cancel   float64       // share of the clients that leave at a random moment of their service
	Warmup   time.Duration // nothing is counted before
	Length   time.Duration
	Steps    []Step
	// Forwarded is told of every exchange that goes to the upstream.
	Forwarded func(tenant int)
}

// Run is a simulation under way.
type Run struct {
	Setup
	result  Result
	limiter Limiter
	settled chan *Exchange
	rng     *rand.Rand
	events  eventHeap
	seq     int
	start   time.Time
	rate    float64
	gaps    Gaps
	open    int // exchanges that have entered and not left
	closing bool
}

// Simulate a setup. It must be called in a synctest bubble, unless real time is wanted.
func Simulate(s Setup, f Factory) (*Result, error) {
	r := &Run{Setup: s, settled: make(chan *Exchange), rng: rand.New(rand.NewPCG(s.Seed, 0x5eed)), start: time.Now()}
	limiter, err := f(r.settled)
	if err != nil {
		return nil, err
	}
	r.limiter = limiter
	r.result.begin(s)
	for _, t := range s.Tenants {
		r.rate += t.Rate
	}
	r.gaps = Poisson
	if s.Replay != nil {
		r.gaps = s.Replay.Replay()
	}
	for _, step := range s.Steps {
		r.after(step.At, func() { step.Do(r) })
	}
	if r.rate > 0 {
		r.after(r.gaps(r.rng, r.rate), r.arrival)
	}
	r.after(time.Second, r.sample)
	r.loop()
	r.result.finish()
	return &r.result, limiter.Close()
}

// loop until the length is over and the last exchange has left.
func (r *Run) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !r.closing || r.open > 0 {
		next, some := r.Upstream.next()
		if len(r.events) > 0 && (!some || r.events[0].at < next) {
			next, some = r.events[0].at, true
		}
		if some {
			timer.Reset(next - time.Since(r.start))
		} else {
			timer.Stop()
		}
		select {
		case x := <-r.settled:
			r.Upstream.advance(r.now())
			r.settle(x)
		case <-timer.C:
			r.Upstream.advance(r.now())
			r.fire()
		}
	}
}

func (r *Run) now() time.Duration { return time.Since(r.start) }

// fire everything that is due.
func (r *Run) fire() {
	now := r.now()
	for x := r.Upstream.due(); x != nil; x = r.Upstream.due() {
		r.phaseEnd(x, now)
	}
	for len(r.events) > 0 && r.events[0].at <= now {
		heap.Pop(&r.events).(event).do()
	}
}

func (r *Run) after(d time.Duration, do func()) {
	r.seq++
	heap.Push(&r.events, event{at: r.now() + d, seq: r.seq, do: do})
}

// sample the limit once a second.
func (r *Run) sample() {
	if r.now() == r.Warmup {
		r.result.warm(&r.Upstream)
	}
	r.result.sampled(r.limiter.Limit())
	if r.now() >= r.Length {
		r.result.stop(&r.Upstream)
		r.closing = true
		r.result.Open = r.open
		return
	}
	r.after(time.Second, r.sample)
}

func (r *Run) arrival() {
	if r.closing {
		return
	}
	r.after(r.gaps(r.rng, r.rate), r.arrival)
	pick := r.rng.Float64() * r.rate
	for i, t := range r.Tenants {
		if pick -= t.Rate; pick < 0 {
			r.enter(i)
			return
		}
	}
}

// Inject lets a tenant send n requests at once.
func (r *Run) Inject(tenant, n int) {
	for range n {
		r.enter(tenant)
	}
}

func (r *Run) enter(tenant int) {
	x := &Exchange{Tenant: tenant, Size: r.Tenants[tenant].Sizes(r.rng), arrived: r.now()}
	leaves := r.rng.Float64() < r.Cancel
	patience := time.Duration(r.rng.Float64() * float64(x.Size.Service()))
	r.result.offered(x)
	r.open++
	switch r.limiter.Enter(x, r.Tenants[tenant].Name) {
	case Admit:
		r.forward(x)
	case Refuse:
		r.refuse(x)
	case Wait:
	}
	if leaves && x.phase != gone {
		r.after(patience, func() { r.leave(x, adaptive.Cancelled) })
	}
}

func (r *Run) settle(x *Exchange) {
	switch {
	case x.phase == gone:
	case x.Refused:
		r.refuse(x)
	default:
		r.forward(x)
	}
}

func (r *Run) refuse(x *Exchange) {
	x.phase = gone
	r.open--
	r.result.refused(x)
}

func (r *Run) forward(x *Exchange) {
	x.forwarded, x.phase = r.now(), prefilling
	r.limiter.Forward(x)
	r.result.forwarded(x)
	if r.Forwarded != nil {
		r.Forwarded(x.Tenant)
	}
	r.Upstream.start(x, float64(x.Size.Cost), x.Size.Prefill)
	if r.Timeout > 0 {
		r.after(r.Timeout, func() { r.leave(x, adaptive.Timeout) })
	}
}

func (r *Run) phaseEnd(x *Exchange, now time.Duration) {
	r.Upstream.stop(x)
	if x.phase == prefilling {
		x.first = now
		r.limiter.FirstByte(x)
		if x.Size.Generate > 0 {
			x.phase = generating
			r.Upstream.start(x, 1, x.Size.Generate)
			return
		}
	}
	x.phase = gone
	r.open--
	r.limiter.Leave(x, adaptive.OK)
	r.result.completed(x, now)
}

// leave before the end: the client gave up.
func (r *Run) leave(x *Exchange, o adaptive.Outcome) {
	switch x.phase {
	case gone:
		return
	case waiting:
		r.limiter.Abandon(x)
	case prefilling, generating:
		r.Upstream.stop(x)
		r.limiter.Leave(x, o)
	}
	x.phase = gone
	r.open--
	r.result.lost(x, o)
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(v any)   { *h = append(*h, v.(event)) }
func (h *eventHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = event{}
	*h = (*h)[:len(*h)-1]
	return last
}
