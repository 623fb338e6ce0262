package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// free is an upstream on which nothing contends.
func free() Upstream { return Upstream{Capacity: 1e9, Knee: Sharing} }

// beside is a setup of four tenants that send steadily and one whose requests all get an answer that is its own fault.
func beside(seed uint64, rate float64, sizes Sizes, bad float64, no Rejection) Setup {
	s := Setup{Seed: seed, Upstream: free(), Warmup: time.Minute, Length: 6 * time.Minute}
	for i := range 4 {
		s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint(i), Rate: rate / 4, Sizes: sizes})
	}
	if bad > 0 {
		s.Tenants = append(s.Tenants, Tenant{Name: "bad", Rate: bad, Sizes: sizes})
	}
	s.Front = func(_ *Run, x *Exchange) *Rejection {
		if x.Tenant == 4 {
			return &no
		}
		return nil
	}
	return s
}

// others is how the four were served, and how far the limit is from where it is without the fifth.
func (b *Bench) others(name string, setup func(seed uint64, bad float64) Setup, rates ...float64) (goals []Goal) {
	for _, rate := range rates {
		served := b.judge(fmt.Sprintf("%s at %g/s: others served", name, rate), 0.99, false, b.ours(), func(seed uint64, f Factory) float64 {
			return b.Run(setup(seed, rate), f).Served(0, 1, 2, 3)
		})
		apart := b.mean(b.ours(), func(seed uint64, f Factory) float64 {
			with, without := b.Run(setup(seed, rate), f), b.Run(setup(seed, 0), f)
			return math.Abs(with.Mean(time.Minute, 6*time.Minute)/without.Mean(time.Minute, 6*time.Minute) - 1)
		})
		goals = append(goals, served, atMost(fmt.Sprintf("%s at %g/s: change of the limit", name, rate), apart, 0.10, ""))
	}
	return goals
}

func (b *Bench) ownRefusals() []Goal {
	sizes := fixed(5, 200*time.Millisecond, 0.3, time.Second)
	return b.others("a tenant's own 429s", func(seed uint64, bad float64) Setup {
		return beside(seed, 20, sizes, bad, Rejection{
			Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond, RetryAfter: 20 * time.Second,
		})
	}, 0.1, 1, 3)
}

func (b *Bench) ownErrors() []Goal {
	sizes := fixed(5, 100*time.Millisecond, 0.3, 300*time.Millisecond)
	return b.others("a tenant's own 500s", func(seed uint64, bad float64) Setup {
		return beside(seed, 50, sizes, bad, Rejection{Answer: adaptive.AnswerFailed, Outcome: adaptive.UpstreamError, After: 20 * time.Millisecond})
	}, 2, 5)
}

// quota is a bucket of requests that refills at rate, as providers limit requests per minute.
type quota struct {
	rate, burst, level float64
	at                 time.Duration
}

// take a request, or say when one will be there.
func (q *quota) take(now time.Duration) (wait time.Duration, ok bool) {
	q.level = min(q.burst, q.level+q.rate*(now-q.at).Seconds())
	q.at = now
	if q.level >= 1 {
		q.level--
		return 0, true
	}
	return time.Duration((1 - q.level) / q.rate * float64(time.Second)), false
}

// sharedQuota: a provider that serves so many requests a second for all tenants together, at twice that.
func (b *Bench) sharedQuota() []Goal {
	const rate, quiet = 20.0, 10
	setup := func(seed uint64) (Setup, *int) {
		q := &quota{rate: rate, burst: rate, level: rate}
		refused := new(int)
		s := Setup{Seed: seed, Upstream: free(), Warmup: 3 * time.Minute, Length: 13 * time.Minute}
		sizes := fixed(5, 500*time.Millisecond, 0.3, 2*time.Second)
		s.Tenants = append(s.Tenants, Tenant{Name: "hot", Rate: rate, Sizes: sizes})
		for i := range quiet {
			s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint("quiet", i), Rate: rate / quiet, Sizes: sizes})
		}
		s.Front = func(r *Run, _ *Exchange) *Rejection {
			wait, ok := q.take(r.now())
			if ok {
				return nil
			}
			if r.now() >= s.Warmup {
				*refused++
			}
			return &Rejection{
				Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond,
				RetryAfter: wait.Truncate(time.Second) + time.Second,
			}
		}
		return s, refused
	}
	run := func(seed uint64, f Factory) (*Result, float64) {
		s, refused := setup(seed)
		r := b.Run(s, f)
		return r, float64(*refused)
	}
	completed := func(r *Result) (n float64) {
		for _, t := range r.Tenants {
			n += float64(t.Completed)
		}
		return n
	}
	used := b.judge("shared quota at 2x: quota used", 0.97, false, b.ours(), func(seed uint64, f Factory) float64 {
		r, _ := run(seed, f)
		return completed(r) / rate / (r.setup.Length - r.setup.Warmup).Seconds()
	})
	refused := b.judge("shared quota at 2x: refused by the provider", 0.08, true, b.ours(), func(seed uint64, f Factory) float64 {
		r, n := run(seed, f)
		return n / (n + completed(r))
	})
	share := b.judge("shared quota at 2x: least of its share that a quiet tenant gets", 0.9, false, b.ours(), func(seed uint64, f Factory) float64 {
		r, _ := run(seed, f)
		least := math.Inf(1)
		for _, t := range r.Tenants[1:] {
			least = min(least, float64(t.Completed)/(rate/(quiet+1)*(r.setup.Length-r.setup.Warmup).Seconds()))
		}
		return least
	})
	return []Goal{used, refused, share}
}

// outages: the proxy reaches no upstream for a while and answers by itself.
func (b *Bench) outages() (goals []Goal) {
	for _, away := range []time.Duration{10 * time.Second, time.Minute} {
		const from = 2 * time.Minute
		sizes := fixed(5, 200*time.Millisecond, 0.3, time.Second)
		run := func(seed uint64, f Factory) *Result {
			s := beside(seed, 26, sizes, 0, Rejection{})
			s.Front = func(r *Run, _ *Exchange) *Rejection {
				if now := r.now(); now < from || now >= from+away {
					return nil
				}
				return &Rejection{Answer: adaptive.AnswerProxyFailed, Outcome: adaptive.UpstreamError, After: time.Millisecond}
			}
			return b.Run(s, f)
		}
		goals = append(goals,
			b.judge(fmt.Sprintf("upstream away for %v: limit after over before", away), 0.9, false, b.ours(), func(seed uint64, f Factory) float64 {
				r := run(seed, f)
				return r.limitAt(from+away+5*time.Second) / max(1, r.limitAt(from))
			}),
			atMost(fmt.Sprintf("upstream away for %v: refused from 5 s after its return on", away), b.mean(b.ours(), func(seed uint64, f Factory) float64 {
				return run(seed, f).refusedBetween(from+away+5*time.Second, 6*time.Minute)
			}), 0, ""))
	}
	return goals
}

// refusingUpstream: an upstream that refuses what is above its own limit, by status or by gRPC trailers after headers.
func (b *Bench) refusingUpstream() (goals []Goal) {
	figure := func(trailers bool) func(seed uint64, f Factory) float64 {
		return func(seed uint64, f Factory) float64 {
			s := Overload(seed, capacity, Sharing, Moderate(), 6*time.Minute)
			s.Front = func(r *Run, x *Exchange) *Rejection {
				if r.Upstream.load+float64(x.Size.Cost) <= capacity {
					return nil
				}
				no := &Rejection{Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond}
				if trailers {
					no.Answer = adaptive.AnswerAccepted
				}
				return no
			}
			r := b.Run(s, f)
			var rejected, forwarded int
			for _, t := range r.Tenants {
				rejected, forwarded = rejected+t.Rejected, forwarded+t.Forwarded
			}
			return float64(rejected) / float64(max(1, forwarded))
		}
	}
	status := b.judge("an upstream that answers 503 above its limit: share refused by it", 0.15, true, b.ours(), figure(false))
	trailers := b.judge("an upstream that says so in gRPC trailers: share refused by it", 0.15, true, b.ours(), figure(true))
	return []Goal{status, trailers, atMost("gRPC trailers over status", trailers.Value/max(1e-9, status.Value), 1.25, "")}
}
