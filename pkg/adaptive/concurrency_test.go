package adaptive

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counted runs loops of two tenants and notes how many requests of each, and of both, ran at once.
func counted(t *testing.T, c *Controller, tenants map[string]int) (most map[string]int) {
	t.Helper()
	var mu sync.Mutex
	now := map[string]int{}
	most = map[string]int{}
	add := func(key string, n int) {
		now[key] += n
		most[key] = max(most[key], now[key])
	}
	end := time.Now().Add(time.Minute)
	for tenant, own := range tenants {
		for range 50 {
			go func() {
				for time.Now().Before(end) {
					var p Permit
					if c.Acquire(&p, Request{Lane: tenant, Cost: 1, MaxConcurrent: own}) == Waiting {
						<-p.Ready()
					}
					if reason := p.Reason(); reason != "" {
						t.Errorf("tenant %s was refused: %s", tenant, reason)
						return
					}
					mu.Lock()
					add(tenant, 1)
					add("all", 1)
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
					mu.Lock()
					add(tenant, -1)
					add("all", -1)
					mu.Unlock()
					p.Done(OK)
				}
			}()
		}
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	return most
}

// The bounds are reached and never exceeded: what one tenant may not use, the other has.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cluster, tenant int
		own             map[string]int
		want            map[string]int
	}{
		"of the cluster":          {12, 0, map[string]int{"a": 0}, map[string]int{"a": 12, "all": 12}},
		"of every tenant":         {0, 7, map[string]int{"a": 0, "b": 0}, map[string]int{"a": 7, "b": 7, "all": 14}},
		"of one tenant":           {0, 7, map[string]int{"a": 3, "b": 0}, map[string]int{"a": 3, "b": 7, "all": 10}},
		"of one above the others": {0, 7, map[string]int{"a": 20, "b": 0}, map[string]int{"a": 20, "b": 7, "all": 27}},
		"of both":                 {12, 0, map[string]int{"a": 3, "b": 0}, map[string]int{"a": 3, "all": 12}},
		"above the limit":         {1000, 1000, map[string]int{"a": 0}, map[string]int{"a": 100, "all": 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limited(100, 1000, 100_000)
				s.VirtualLanes, s.MaxWait = true, time.Hour
				s.MaxConcurrent, s.TenantMaxConcurrent = test.cluster, test.tenant
				r := newRig(t, s)
				got := counted(t, r.c, test.own)
				for key, want := range test.want {
					if key == "a" && want == 100 || key == "all" && want == 100 {
						want = 50 // as many as there are loops
					}
					if got[key] != want {
						t.Errorf("%s: %d ran at once at most, want %d", key, got[key], want)
					}
				}
				r.empty()
			})
		})
	}
}

// Each of several replicas has its part, and at least one.
func TestMaxConcurrentOfReplicas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ replicas, cluster, tenant, wantCluster, wantTenant int }{
		{1, 40, 10, 40, 10}, {4, 40, 10, 10, 2}, {3, 40, 10, 13, 3}, {50, 40, 10, 1, 1}, {4, 0, 0, 0, 0},
	} {
		s := limited(100, 9, 100)
		s.MaxLimit = 10_000
		s.MinLimit, s.InitialLimit = 1000*test.replicas, 1000*test.replicas
		if s.MaxLimit < s.MinLimit {
			s.MaxLimit = s.MinLimit
		}
		s.Replicas, s.MaxConcurrent, s.TenantMaxConcurrent = test.replicas, test.cluster, test.tenant
		c := mustNew(t, s)
		if got := c.Snapshot().MaxConcurrent; got != test.wantCluster {
			t.Errorf("one of %d replicas may run %d of %d, want %d", test.replicas, got, test.cluster, test.wantCluster)
		}
		running := 0
		for range 100 {
			var p Permit
			if c.Acquire(&p, Request{Lane: "t", Cost: 1, MaxWait: -1}) == Admitted {
				running++
			}
		}
		if want := test.wantTenant; want > 0 && running != min(want, test.wantCluster) || want == 0 && running != 100 {
			t.Errorf("a tenant runs %d in one of %d replicas, want %d", running, test.replicas, want)
		}
	}
}

// Who waits for a maxConcurrent to the end is told so.
func TestReasonsOfMaxConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(100, 1, 100)
		s.VirtualLanes, s.TenantMaxConcurrent, s.MaxConcurrent = true, 2, 3
		r := newRig(t, s)
		a, b := r.ask("t", 1, Admitted), r.ask("t", 1, Admitted)
		own := r.ask("t", 1, Waiting)
		r.refused("with a full queue", r.ask("t", 1, Refused), TenantConcurrency)
		c := r.ask("u", 1, Admitted)
		others := r.ask("u", 1, Waiting)
		r.refused("with a full queue", r.ask("u", 1, Refused), Concurrency)
		var child, never Permit
		if got := r.c.AcquireNow(&child, Request{Lane: "t", Cost: 1}); got != Refused || child.Reason() != FanoutSkipped {
			t.Errorf("a child of a tenant at its bound: %v for %q", got, child.Reason())
		}
		if got := r.c.Acquire(&never, Request{Lane: "v", Cost: 1, MaxWait: -1}); got != Refused || never.Reason() != Concurrency {
			t.Errorf("one that cannot wait: %v for %q, want %q", got, never.Reason(), Concurrency)
		}
		time.Sleep(s.MaxWait)
		synctest.Wait()
		r.refused("after the wait", own, TenantConcurrency)
		r.refused("after the wait", others, Concurrency)
		done(a, b, c)
		r.empty()
	})
}

// New bounds hold at once: a higher one lets waiters in, a lower one takes nothing away.
func TestMaxConcurrentCanChange(t *testing.T) {
	t.Parallel()
	s := limited(100, 9, 100)
	s.VirtualLanes, s.MaxConcurrent = true, 1
	r := newRig(t, s)
	a, b, c := r.ask("t", 1, Admitted), r.ask("t", 1, Waiting), r.ask("t", 1, Waiting)
	change := func(cluster, tenant int) {
		t.Helper()
		s.MaxConcurrent, s.TenantMaxConcurrent = cluster, tenant
		if err := r.c.Configure(s); err != nil {
			t.Fatal(err)
		}
	}
	change(2, 0)
	r.admitted("the second of a cluster with two", b, true)
	change(0, 2)
	r.admitted("the third of a tenant with two", c, false)
	change(0, 3)
	r.admitted("the third of a tenant with three", c, true)
	change(1, 1)
	d := r.ask("t", 1, Waiting)
	done(a, b)
	r.admitted("while one still runs", d, false)
	done(c)
	r.admitted("when none does", d, true)
	// The bound that comes with a request holds for those that wait too.
	e := r.ask("t", 1, Waiting)
	change(0, 1)
	var f Permit
	if got := r.c.Acquire(&f, Request{Lane: "t", Cost: 1, MaxConcurrent: 3}); got != Admitted {
		t.Errorf("with a bound of three: %v", got)
	}
	r.admitted("the one that waited", e, true)
	done(d, e, &f)
	r.empty()
}

// A bound that holds requests back is not the limit's doing: the limit neither grows nor is tried because of it.
func TestMaxConcurrentDoesNotMoveTheLimit(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Settings){
		"of the cluster": func(s *Settings) { s.MaxConcurrent = 5 },
		"of the tenants": func(s *Settings) { s.TenantMaxConcurrent = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := DefaultSettings()
				s.Mode, s.VirtualLanes, s.MaxWait = Enforce, true, time.Hour
				change(&s)
				c := mustNew(t, s)
				counted(t, c, map[string]int{"a": 0})
				if got := c.Snapshot(); got.CurrentLimit != s.InitialLimit {
					t.Errorf("the limit is %d, want the initial %d; steps %v", got.CurrentLimit, s.InitialLimit, got.StepCounts)
				}
			})
		})
	}
}

// In shadow mode nobody waits for a bound, and what would have waited is counted.
func TestMaxConcurrentInShadow(t *testing.T) {
	t.Parallel()
	s := limited(100, 9, 100)
	s.Mode, s.VirtualLanes, s.TenantMaxConcurrent = Shadow, true, 1
	r := newRig(t, s)
	a, b := r.ask("t", 1, Admitted), r.ask("t", 1, Admitted)
	r.numbers("two of a tenant with one", map[string]any{
		"activeCount": 2, "virtualActiveCount": 1, "virtualQueuedCount": 1, "wouldAdmitCount": 1, "wouldQueueCount": 1,
	})
	s.Mode = Enforce
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	c := r.ask("t", 1, Waiting)
	done(a)
	r.admitted("while the other one still runs", c, false)
	done(b)
	r.admitted("when none does", c, true)
	done(c)
	r.empty()
}

// A fan-out's look counts what earlier targets would take of the tenant's bound.
func TestProbesSeeMaxConcurrent(t *testing.T) {
	t.Parallel()
	s := limited(100, 9, 100)
	s.VirtualLanes, s.TenantMaxConcurrent, s.MaxConcurrent = true, 2, 3
	r := newRig(t, s)
	look := func(lane string) (free int) {
		for _, ok := range r.c.TryAcquire(make3(lane)) {
			if ok {
				free++
			}
		}
		return free
	}
	if got := look("new"); got != 2 {
		t.Errorf("%d of three targets may go ahead, want the tenant's 2", got)
	}
	a, b := r.ask("t", 1, Admitted), r.ask("u", 1, Admitted)
	if got := look("t"); got != 1 {
		t.Errorf("%d of three targets may go ahead beside a running one, want 1", got)
	}
	if got := look("v"); got != 1 {
		t.Errorf("%d of three targets may go ahead, want the 1 that the cluster has left", got)
	}
	done(a, b)
	r.empty()
}

func make3(lane string) []Request {
	return []Request{{Lane: lane, Cost: 1}, {Lane: lane, Cost: 1}, {Lane: lane, Cost: 1}}
}
