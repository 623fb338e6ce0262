package adaptive

import (
	"testing"
	"testing/synctest"
	"time"
)

// One tenant whose key is exhausted gets a refusal a second, beside a tenant whose requests are all served.
func TestOneTenantsRefusalsLeaveTheLimitAlone(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]Outcome{"refused": Overload, "failed": UpstreamError} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, benchSettings())
			for range 120 {
				p := r.ask("bad", 5, Admitted)
				p.Forwarded()
				p.NoSample()
				p.Done(bad)
				for range 4 {
					r.one(5, 250*time.Millisecond, OK)
				}
			}
			if got := r.limit(); got != 64 {
				t.Errorf("%s: limit %d after two minutes, want 64", name, got)
			}
			r.empty()
		})
	}
}

// All tenants are refused now and then: that is the upstream, whoever is refused most often.
func TestRefusalsOfSeveralTenantsLowerTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		for range 20 {
			for _, lane := range []string{"a", "b", "c"} {
				p := r.ask(lane, 5, Admitted)
				p.Forwarded()
				p.NoSample()
				time.Sleep(100 * time.Millisecond)
				p.Done(Overload)
				r.one(5, 100*time.Millisecond, OK)
			}
		}
		if got := r.limit(); got >= 64 {
			t.Errorf("limit %d, want it lowered from 64", got)
		}
		r.empty()
	})
}

// One high sample cuts once, however often the state is read and however many windows pass before the next sample.
func TestAPressureSampleCutsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		r.c.Observe(High)
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			r.limit()
		}
		if got := r.limit(); got != 51 {
			t.Errorf("limit %d five windows after one high sample, want 51", got)
		}
		r.c.Observe(High)
		time.Sleep(time.Second)
		if got := r.limit(); got != 40 {
			t.Errorf("limit %d after a second sample, want 40", got)
		}
	})
}

// A child of a fan-out runs in its parent's lane and does not change that lane's weight; a weight that is no longer stated is 1.
func TestWeightsAreTheRequestsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, benchSettings())
	parent, child := new(Permit), new(Permit)
	r.c.Acquire(parent, Request{Lane: "a", Cost: 1, Weight: 3})
	r.c.AcquireNow(child, Request{Lane: "a", Cost: 1, Weight: 1000})
	if got := parent.lane.weight; got != 3 {
		t.Errorf("weight %v after a child of weight 1000, want 3", got)
	}
	later := r.ask("a", 1, Admitted)
	if got := later.lane.weight; got != 1 {
		t.Errorf("weight %v after a request that states none, want 1", got)
	}
	done(parent, child, later)
	r.empty()
}
