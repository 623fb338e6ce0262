package sim

import (
	"container/heap"
	"math"
	"time"
)

// Knee is the speed of every job in the upstream, 1 when idle, at load x times the capacity.
type Knee func(x float64) float64

// Hard knee: full speed up to the capacity; beyond it throughput falls, to a fifth at 1.8 times the capacity.
func Hard(x float64) float64 {
	if x <= 1 {
		return 1
	}
	return max(0.2, 1-(x-1)) / x
}

// Soft knee: latency rises from the start and throughput approaches the capacity.
func Soft(x float64) float64 { return 1 / math.Sqrt(1+x*x) }

// Sharing is the ideal server: full speed up to the capacity, then shared without loss.
func Sharing(x float64) float64 { return 1 / max(1, x) }

// Upstream shares its capacity among the jobs in service. All advance at the same speed, so that one counter, the service
// each job has had since the beginning, orders all of them.
type Upstream struct {
	Capacity float64 // cost units
	Slowdown float64 // factor on every service time; 0 = 1
	Knee     Knee

	served float64 // seconds of service given to a job that was there from the start
	at     time.Duration
	load   float64
	jobs   jobHeap
	busy   float64 // integral of the work rate: cost·s delivered
}

type job struct {
	x      *Exchange
	weight float64
	due    float64 // value of served at which the phase ends
	index  int
}

// advance the upstream's state to the given time.
func (u *Upstream) advance(now time.Duration) {
	if now <= u.at {
		return
	}
	gained := (now - u.at).Seconds() * u.speed()
	u.served += gained
	u.busy += gained * u.load
	u.at = now
}

func (u *Upstream) speed() float64 {
	return u.Knee(u.load/u.Capacity) / max(u.Slowdown, 1)
}

// start a phase of the exchange's job. The upstream must have been advanced to now.
func (u *Upstream) start(x *Exchange, weight float64, need time.Duration) {
	x.job = job{x: x, weight: weight, due: u.served + need.Seconds()}
	u.load += weight
	heap.Push(&u.jobs, &x.job)
}

// stop the exchange's job, finished or not.
func (u *Upstream) stop(x *Exchange) {
	heap.Remove(&u.jobs, x.job.index)
	u.load -= x.job.weight
	if len(u.jobs) == 0 {
		u.load = 0 // sums of floats do not return to zero by themselves
	}
}

// next is when the first phase ends if nothing changes; false when idle.
func (u *Upstream) next() (time.Duration, bool) {
	if len(u.jobs) == 0 {
		return 0, false
	}
	left := max(0, u.jobs[0].due-u.served) / u.speed()
	return u.at + time.Duration(math.Ceil(left*1e9)), true
}

// due is the exchange whose phase has ended, or nil.
func (u *Upstream) due() *Exchange {
	if len(u.jobs) == 0 || u.jobs[0].due > u.served+1e-9 {
		return nil
	}
	return u.jobs[0].x
}

type jobHeap []*job

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h jobHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *jobHeap) Push(v any) {
	j := v.(*job)
	j.index = len(*h)
	*h = append(*h, j)
}
func (h *jobHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// knee is the upstream as a backend: the prefill weighs the request's cost, the generation one.
type knee struct{ *Upstream }

func (k *knee) enter(x *Exchange, _ time.Duration) { k.start(x, float64(x.Size.Cost), x.Size.Prefill) }

func (k *knee) leave(x *Exchange) { k.stop(x) }

func (k *knee) fire(r *Run, _ time.Duration) {
	for x := k.due(); x != nil; x = k.due() {
		k.stop(x)
		if x.phase == prefilling {
			r.firstToken(x)
			if x.Size.Generate > 0 {
				k.start(x, 1, x.Size.Generate)
				continue
			}
		}
		r.finished(x)
	}
}
