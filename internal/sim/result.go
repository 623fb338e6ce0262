package sim

import (
	"slices"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// slowFirstByte is how many times the idle time to the first byte still counts as goodput.
const slowFirstByte = 2

// TenantResult counts one tenant's requests that arrived after the warm-up. Work is counted when it completes.
type TenantResult struct {
	Offered, Refused, Forwarded, Completed, Rejected, Timeouts, Cancelled int

	Work  float64         // cost·s completed
	Waits []time.Duration // of the forwarded, in the gate
}

// Result of a run.
type Result struct {
	Tenants []TenantResult
	Limits  []float64 // once a second from the first second on
	Good    float64   // goodput in cost·s per second, after the warm-up
	Busy    float64   // share of the capacity that was used after the warm-up
	Service time.Duration
	Open    int // requests that had no outcome yet at the end

	Rejections []time.Duration // when exchanges were forwarded that the upstream or the proxy refused
	Refusals   []time.Duration // when exchanges arrived that the limiter refused
	Done       []Done          // completed exchanges, those of the warm-up too

	setup        Setup
	utilizations []float64
	good         float64
	busyStart    float64
	serviceN     int
	ended        bool
}

func (r *Result) begin(s Setup) {
	r.setup = s
	r.Tenants = make([]TenantResult, len(s.Tenants))
}

func (r *Result) counts(at time.Duration) bool { return at >= r.setup.Warmup && !r.ended }

func (r *Result) offered(x *Exchange) {
	if r.counts(x.arrived) {
		r.Tenants[x.Tenant].Offered++
	}
}

func (r *Result) refused(x *Exchange) {
	r.Refusals = append(r.Refusals, x.arrived)
	if r.counts(x.arrived) {
		r.Tenants[x.Tenant].Refused++
	}
}

func (r *Result) forwarded(x *Exchange) {
	if r.counts(x.arrived) {
		t := &r.Tenants[x.Tenant]
		t.Forwarded++
		t.Waits = append(t.Waits, x.forwarded-x.arrived)
	}
}

// Done is a completed exchange.
type Done struct {
	Tenant                         int
	Size                           Size
	Arrived, Forwarded, First, End time.Duration
}

// rejected counts an exchange that the upstream or the proxy refused.
func (r *Result) rejected(x *Exchange) {
	r.Rejections = append(r.Rejections, x.forwarded)
	if r.counts(x.arrived) {
		r.Tenants[x.Tenant].Rejected++
	}
}

func (r *Result) completed(x *Exchange, now time.Duration) {
	r.Done = append(r.Done, Done{x.Tenant, x.Size, x.arrived, x.forwarded, x.first, now})
	if !r.counts(now) {
		return
	}
	t := &r.Tenants[x.Tenant]
	t.Completed++
	t.Work += x.Size.Work()
	r.Service += now - x.forwarded
	r.serviceN++
	if x.first-x.forwarded <= slowFirstByte*x.Size.Prefill {
		r.good += x.Size.Work()
	}
}

func (r *Result) lost(x *Exchange, o adaptive.Outcome) {
	if !r.counts(x.arrived) {
		return
	}
	if o == adaptive.Cancelled {
		r.Tenants[x.Tenant].Cancelled++
	} else {
		r.Tenants[x.Tenant].Timeouts++
	}
}

func (r *Result) sampled(limit, utilization float64) {
	r.Limits = append(r.Limits, limit)
	r.utilizations = append(r.utilizations, utilization)
}

func (r *Result) warm(u *Upstream) { r.busyStart = u.busy }

func (r *Result) stop(u *Upstream) {
	r.ended = true
	seconds := (r.setup.Length - r.setup.Warmup).Seconds()
	r.Good = r.good / seconds
	r.Busy = (u.busy - r.busyStart) / seconds / u.Capacity
}

func (r *Result) finish() {
	if r.serviceN > 0 {
		r.Service /= time.Duration(r.serviceN)
	}
}

// Works done for each tenant, for Jain.
func (r *Result) Works() []float64 {
	works := make([]float64, len(r.Tenants))
	for i, t := range r.Tenants {
		works[i] = t.Work
	}
	return works
}

// Served is the share of the tenants' requests that were forwarded.
func (r *Result) Served(tenants ...int) float64 {
	var offered, forwarded int
	for _, i := range tenants {
		offered += r.Tenants[i].Offered
		forwarded += r.Tenants[i].Forwarded
	}
	return float64(forwarded) / float64(max(offered, 1))
}

// Wait quantile over the tenants' forwarded requests.
func (r *Result) Wait(q float64, tenants ...int) time.Duration {
	var waits []time.Duration
	for _, i := range tenants {
		waits = append(waits, r.Tenants[i].Waits...)
	}
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	return waits[min(int(q*float64(len(waits))), len(waits)-1)]
}

// Mean limit over a span of the run.
func (r *Result) Mean(from, to time.Duration) float64 { return mean(r.Limits, from, to) }

// Utilization of the limit after the warm-up, as the limiter itself measures it.
func (r *Result) Utilization() float64 {
	return mean(r.utilizations, r.setup.Warmup, r.setup.Length)
}

func mean(perSecond []float64, from, to time.Duration) float64 {
	span := perSecond[int(from/time.Second):min(int(to/time.Second), len(perSecond))]
	var sum float64
	for _, l := range span {
		sum += l
	}
	return sum / float64(max(len(span), 1))
}

// Jain is Jain's index of fairness: 1 when all are equal, 1/n when one has all.
func Jain(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(v)) * squares)
}
