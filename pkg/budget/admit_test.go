package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// Given a budget and what is taken of it, a request is admitted or refused at once.
func TestAcquireDecidesAtOnce(t *testing.T) {
	t.Parallel()
	normal := &memory.Pressure{Healthy: true}
	for _, c := range []struct {
		name  string
		start scenario
		play  func(r *rig)
	}{
		{"a body that fits is admitted", scenario{budget: mib, pressure: normal}, func(r *rig) {
			r.admit(request("a", 4096))
			r.inflight(4096)
		}},
		{"a body over the whole budget is refused without a wait or a retry", scenario{budget: 1024, settings: maxWait(5 * time.Second)},
			func(r *rig) {
				start := time.Now()
				r.refuse(request("a", 4096), Refusal{Reason: BodyExceedsBudget})
				if waited := time.Since(start); waited > time.Second {
					r.t.Errorf("refused after %v", waited)
				}
				r.inflight(0)
				r.sheds(map[Reason]int64{BodyExceedsBudget: 1})
			}},
		{"a body of exactly the budget is admitted", scenario{budget: 1024}, func(r *rig) {
			r.admit(request("a", 1024))
		}},
		{"critical pressure comes before the size", scenario{budget: 1024, pressure: &memory.Pressure{Severity: memory.Critical, Healthy: true}},
			func(r *rig) {
				r.refuse(request("a", 64), Refusal{ResourcePressure, seconds(2)})
				r.refuse(request("a", 4096), Refusal{ResourcePressure, seconds(2)})
				r.sheds(map[Reason]int64{ResourcePressure: 2})
			}},
		{"eight bodies fit without a count cap", scenario{}, func(r *rig) {
			for i := range 8 {
				r.admit(request("a", mib))
				r.inflight(int64(i+1) * mib)
			}
		}},
		{"eight keys share one budget", scenario{settings: maxWait(0)}, func(r *rig) {
			for i := range 8 {
				r.admit(request(fmt.Sprint("key", i), mib))
			}
			r.refuse(request("one more", mib), Refusal{InflightBytesBudget, seconds(2)})
		}},
		{"a cap of one refuses the second while memory is not healthy", scenario{settings: both(slots(1), maxWait(0))}, func(r *rig) {
			h := r.admit(request("a", 33))
			r.refuse(request("a", 33), Refusal{InflightBytesBudget, seconds(2)})
			if n := r.c.Snapshot().ActiveHeavy; n != 1 {
				r.t.Errorf("activeHeavy %d, want 1", n)
			}
			h.Release()
			h.Release()
			r.admit(request("a", 33))
		}},
		{"a refused slot reserves no bytes, refused bytes take no slot", scenario{budget: 100, settings: both(slots(2), maxWait(0))}, func(r *rig) {
			r.admit(request("a", 60))
			r.refuse(request("b", 60), Refusal{InflightBytesBudget, seconds(2)})
			r.admit(request("b", 20))
			r.refuse(request("c", 10), Refusal{InflightBytesBudget, seconds(2)})
			r.inflight(80)
		}},
		{"a caller with no time left does not wait", scenario{budget: 100}, func(r *rig) {
			r.admit(request("a", 100))
			r.refuse(Request{Key: "a", Bytes: 1}, Refusal{InflightBytesBudget, seconds(2)})
		}},
		{"structure-heavy bodies are refused as such, and counted by what they lacked", scenario{settings: both(slots(1), maxWait(0))}, func(r *rig) {
			r.admit(Request{Bytes: 256 * kib, Structure: true})
			r.refuse(Request{Bytes: 256 * kib, Structure: true}, Refusal{StructureLimit, seconds(1)})
			r.sheds(map[Reason]int64{InflightBytesBudget: 1})
		}},
		{"refusals decided elsewhere are counted", scenario{}, func(r *rig) {
			r.c.Shed(ResourcePressure)
			r.c.Shed(BodyExceedsBudget)
			r.sheds(map[Reason]int64{ResourcePressure: 1, BodyExceedsBudget: 1})
		}},
		{"64 of 200 partial bodies fit 4 MiB", scenario{budget: 4 * mib, settings: maxWait(0)}, func(r *rig) {
			for range 64 {
				r.admit(request("a", 64*kib))
			}
			for range 136 {
				r.refuse(request("a", 64*kib), Refusal{InflightBytesBudget, seconds(2)})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.play(t, c.play)
		})
	}
}

// Given a count cap, the healthy headroom is a second, finite set of slots.
func TestHealthyHeadroom(t *testing.T) {
	t.Parallel()
	healthy := &memory.Pressure{Healthy: true}
	headroom := func(n int) func(*Settings) { return func(s *Settings) { s.HealthyHeadroom = &n } }
	counts := func(r *rig, active, extra int) {
		r.t.Helper()
		if s := r.c.Snapshot(); s.ActiveHeavy != active || s.ActiveHealthyHeadroom != extra || !s.CountCapEnabled {
			r.t.Errorf("slots %d + %d, want %d + %d; %+v", s.ActiveHeavy, s.ActiveHealthyHeadroom, active, extra, s)
		}
	}
	t.Run("is as large as the cap unless it is set", func(t *testing.T) {
		scenario{settings: both(slots(1), maxWait(0)), pressure: healthy}.play(t, func(r *rig) {
			first, second := r.admit(request("a", 33)), r.admit(request("a", 33))
			counts(r, 1, 1)
			r.refuse(request("a", 33), Refusal{InflightBytesBudget, seconds(2)})
			first.Release()
			counts(r, 0, 1)
			second.Release()
			second.Release()
			counts(r, 0, 0)
		})
	})
	t.Run("zero closes it", func(t *testing.T) {
		scenario{settings: both(slots(1), headroom(0), maxWait(0)), pressure: healthy}.play(t, func(r *rig) {
			r.admit(request("a", 33))
			r.refuse(request("a", 33), Refusal{InflightBytesBudget, seconds(2)})
		})
	})
	t.Run("releasing it wakes a waiter", func(t *testing.T) {
		scenario{settings: both(slots(1), headroom(2)), pressure: healthy}.play(t, func(r *rig) {
			r.admit(request("a", 1))
			extra := r.admit(request("a", 1))
			r.admit(request("a", 1))
			w := r.wait(request("b", 1))
			extra.Release()
			r.granted(w)
			counts(r, 1, 2)
		})
	})
	t.Run("becoming healthy wakes waiters", func(t *testing.T) {
		scenario{settings: both(slots(1), headroom(2))}.play(t, func(r *rig) {
			r.admit(request("a", 1))
			w1, w2, w3 := r.wait(request("a", 1)), r.wait(request("a", 1)), r.wait(request("a", 1))
			r.setPressure(memory.Pressure{Severity: memory.High, Healthy: true})
			r.granted(w1, w2)
			r.waits(w3)
			counts(r, 1, 2)
		})
	})
	t.Run("is kept by who has it when memory turns unhealthy", func(t *testing.T) {
		scenario{settings: slots(1), pressure: healthy}.play(t, func(r *rig) {
			r.admit(request("a", 1))
			extra := r.admit(request("a", 1))
			r.setPressure(memory.Pressure{Severity: memory.High})
			counts(r, 1, 1)
			w := r.wait(request("a", 1))
			extra.Release()
			r.waits(w)
		})
	})
}

// Given reload or a resized container, what is granted stays and what now fits is granted.
func TestChangesWhileRunning(t *testing.T) {
	t.Parallel()
	t.Run("a smaller budget drains before it admits, and is never negative", func(t *testing.T) {
		scenario{budget: 100}.play(t, func(r *rig) {
			a, b := r.admit(request("a", 60)), r.admit(request("a", 40))
			w := r.wait(request("b", 10))
			r.setBudget(50)
			if s := r.c.Snapshot(); s.InflightBytes != 100 || s.MaxInflightBytes != 50 {
				r.t.Errorf("%d of %d bytes, want 100 of 50", s.InflightBytes, s.MaxInflightBytes)
			}
			b.Release()
			r.waits(w)
			a.Release()
			r.granted(w)
			r.inflight(10)
		})
	})
	t.Run("waiters that can never fit a smaller budget are refused at once", func(t *testing.T) {
		scenario{budget: 100}.play(t, func(r *rig) {
			h := r.admit(request("a", 45))
			r.admit(request("a", 45))
			w, small := r.wait(request("b", 60)), r.wait(request("b", 50))
			growth := r.grow(h, 70)
			r.setBudget(50)
			r.refused(w, Refusal{Reason: BodyExceedsBudget})
			r.refused(growth, Refusal{Reason: BodyExceedsBudget})
			r.waits(small)
			if h.Bytes() != 45 {
				r.t.Errorf("the hold has %d bytes, want its 45", h.Bytes())
			}
		})
	})
	t.Run("a larger budget starts all that fit", func(t *testing.T) {
		scenario{budget: 10}.play(t, func(r *rig) {
			r.admit(request("a", 10))
			ws := make([]*Waiter, 10)
			for i := range ws {
				ws[i] = r.wait(request("a", 10))
			}
			r.setBudget(50)
			r.granted(ws[:4]...)
			r.waits(ws[4:]...)
		})
	})
	t.Run("more slots start as many waiters", func(t *testing.T) {
		scenario{settings: slots(1)}.play(t, func(r *rig) {
			r.admit(request("a", 1))
			ws := make([]*Waiter, 10)
			for i := range ws {
				ws[i] = r.wait(request("a", 1))
			}
			s := DefaultSettings()
			slots(5)(&s)
			r.c.Configure(s)
			r.granted(ws[:4]...)
			r.waits(ws[4:]...)
			r.c.Configure(DefaultSettings())
			r.granted(ws[4:]...)
		})
	})
	t.Run("a shorter wait does not move deadlines that run", func(t *testing.T) {
		scenario{budget: 10, settings: maxWait(5 * time.Second)}.play(t, func(r *rig) {
			r.admit(request("a", 10))
			w := r.wait(request("a", 10))
			s := DefaultSettings()
			maxWait(0)(&s)
			r.c.Configure(s)
			time.Sleep(5*time.Second - 1)
			r.waits(w)
			time.Sleep(1)
			r.refused(w, Refusal{QueueTimeout, seconds(5)})
		})
	})
}
