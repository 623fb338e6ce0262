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
	Whole  bool // it did not ask for a stream: the headers come with the end
	// Refused is set by the limiter before it settles a waiting exchange.
	Refused bool

	arrived, forwarded, first time.Duration
	phase                     phase
	sampled                   bool // its first token is seen
	job                       job
	handle                    any // the limiter's own
}

type phase uint8

const (
	waiting phase = iota
	prefilling
	generating
	rejected // an answer that is no work's is under way
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
	Respond(x *Exchange, r adaptive.Response)
	FirstToken(x *Exchange)
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

// Rejection is an answer that comes instead of the upstream's work.
type Rejection struct {
	Answer     adaptive.Answer
	Outcome    adaptive.Outcome
	RetryAfter time.Duration
	After      time.Duration // it comes this long after forwarding
}

// Front may answer an exchange in the upstream's place: a quota, an error, a proxy that reaches nobody. nil lets it pass.
type Front func(r *Run, x *Exchange) *Rejection

// backend is what does the work. advance must have been called with the present time before anything else is.
type backend interface {
	advance(now time.Duration)
	next() (at time.Duration, some bool) // when something happens next, if nothing else does
	fire(r *Run, now time.Duration)      // what is due
	enter(x *Exchange, now time.Duration)
	leave(x *Exchange)
}

// Setup of one run.
type Setup struct {
	Seed     uint64
	Tenants  []Tenant
	Replay   *Trace // whose arrivals to stretch to the rate; nil = Poisson
	Upstream Upstream
	Engine   *EngineModel    // in place of Upstream
	Front    Front           // nil lets everything pass
	Headers  time.Duration   // the headers of a stream come this long after forwarding; 0 = with the first token
	Signal   adaptive.Signal // where first tokens are seen; "" = headers
	Sample   int             // one first token in so many is seen; 0 = all
	Timeout  time.Duration   // the client's, from forwarding; 0 = none
	Cancel   float64         // share of the clients that leave at a random moment of their service
	Warmup   time.Duration   // nothing is counted before
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
	backend backend
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
	r.backend = &knee{Upstream: &r.Upstream}
	if s.Engine != nil {
		r.backend = newEngine(*s.Engine)
	}
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
		next, some := r.backend.next()
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
			r.backend.advance(r.now())
			r.settle(x)
		case <-timer.C:
			r.backend.advance(r.now())
			r.fire()
		}
	}
}

func (r *Run) now() time.Duration { return time.Since(r.start) }

// fire everything that is due.
func (r *Run) fire() {
	now := r.now()
	r.backend.fire(r, now)
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

// SetRate changes how often a tenant sends.
func (r *Run) SetRate(tenant int, rate float64) {
	idle := r.rate == 0
	r.rate += rate - r.Tenants[tenant].Rate
	r.Tenants[tenant].Rate = rate
	if r.rate < 1e-9 {
		r.rate = 0
	}
	if idle && r.rate > 0 {
		r.after(r.gaps(r.rng, r.rate), r.arrival)
	}
}

func (r *Run) enter(tenant int) {
	t := &r.Tenants[tenant]
	x := &Exchange{Tenant: tenant, Size: t.Sizes(r.rng), arrived: r.now()}
	leaves := r.rng.Float64() < r.Cancel
	patience := time.Duration(r.rng.Float64() * float64(x.Size.Service()))
	if t.Whole > 0 && r.rng.Float64() < t.Whole {
		x.Whole = true
		x.Size.Cost++
	}
	r.result.offered(x)
	r.open++
	switch r.limiter.Enter(x, t.Name) {
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
	if r.Front != nil {
		if no := r.Front(r, x); no != nil {
			x.phase = rejected
			r.after(no.After, func() { r.reject(x, no) })
			return
		}
	}
	x.sampled = r.Sample <= 1 || r.rng.IntN(r.Sample) == 0
	r.backend.enter(x, r.now())
	if r.Headers > 0 && !x.Whole {
		r.after(r.Headers, func() { r.respond(x) })
	}
	if r.Timeout > 0 {
		r.after(r.Timeout, func() { r.leave(x, adaptive.Timeout) })
	}
}

// reject ends an exchange that the upstream, or the proxy, does not serve.
func (r *Run) reject(x *Exchange, no *Rejection) {
	if x.phase != rejected {
		return
	}
	x.phase = gone
	r.open--
	r.limiter.Respond(x, adaptive.Response{Class: x.class(), Answer: no.Answer, RetryAfter: no.RetryAfter, Signal: r.signal()})
	r.limiter.Leave(x, no.Outcome)
	r.result.rejected(x)
}

func (x *Exchange) class() adaptive.Class {
	if x.Whole {
		return adaptive.Whole
	}
	return adaptive.Stream
}

func (r *Run) signal() adaptive.Signal {
	if r.Signal == "" {
		return adaptive.FromHeaders
	}
	return r.Signal
}

// respond passes the response's headers on.
func (r *Run) respond(x *Exchange) {
	if x.phase == gone {
		return
	}
	r.limiter.Respond(x, adaptive.Response{Class: x.class(), Signal: r.signal(), AtOnce: r.Headers > 0 && !x.Whole, Unsampled: r.signal() != adaptive.FromHeaders && !x.sampled})
}

// firstToken and finished are what the backend reports.
func (r *Run) firstToken(x *Exchange) {
	x.first, x.phase = r.now(), generating
	if x.Whole {
		return
	}
	if r.Headers == 0 {
		r.respond(x)
	}
	if r.signal() != adaptive.FromHeaders && x.sampled {
		r.limiter.FirstToken(x)
	}
}

func (r *Run) finished(x *Exchange) {
	if x.Whole {
		r.respond(x)
	}
	x.phase = gone
	r.open--
	r.limiter.Leave(x, adaptive.OK)
	r.result.completed(x, r.now())
}

// leave before the end: the client gave up.
func (r *Run) leave(x *Exchange, o adaptive.Outcome) {
	switch x.phase {
	case gone:
		return
	case waiting:
		r.limiter.Abandon(x)
	case rejected:
		r.limiter.Leave(x, o)
	case prefilling, generating:
		r.backend.leave(x)
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
