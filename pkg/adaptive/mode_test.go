package adaptive

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestInitialLimitIsClamped(t *testing.T) {
	t.Parallel()
	for initial, want := range map[int]int{1: 10, 999: 100, 20: 20} {
		s := baseSettings()
		s.InitialLimit = initial
		newRig(t, s).numbers("new", map[string]any{"currentLimit": want})
	}
}

func TestOffAdmitsWithoutAccounting(t *testing.T) {
	t.Parallel()
	s := baseSettings()
	s.Mode = Off
	r := newRig(t, s)
	a, b := r.ask("a", 100, Admitted), r.ask("a", 100, Admitted)
	r.numbers("two of 100", map[string]any{"activeCount": 0, "admittedCount": 0, "rejectedCount": 0})
	a.Forwarded()
	a.FirstToken()
	r.admitted("a permit that lanes know nothing of", a, true)
	done(a, b)
	r.empty()
}

func TestShadowNeverDelaysAndCountsWhatItWouldDo(t *testing.T) {
	t.Parallel()
	s := limited(10, 1, 10)
	s.Mode = Shadow
	r := newRig(t, s)
	a := r.ask("t", 8, Admitted)
	r.numbers("first", map[string]any{"activeCost": 8, "wouldAdmitCount": 1})
	b := r.ask("t", 8, Admitted)
	r.numbers("second", map[string]any{"activeCost": 16, "queuedCount": 0, "wouldQueueCount": 1})
	c := r.ask("t", 50, Admitted)
	r.numbers("third", map[string]any{"activeCost": 26, "wouldRejectCount": 1, "rejectedCount": 0, "admittedCount": 3})
	done(a, b, c)
	r.empty()
}

func TestShadowVirtualQueueMovesUp(t *testing.T) {
	t.Parallel()
	s := limited(10, 1, 8)
	s.Mode = Shadow
	r := newRig(t, s)
	a, b, c := r.ask("t", 8, Admitted), r.ask("t", 8, Admitted), r.ask("t", 8, Admitted)
	r.numbers("three of 8", map[string]any{
		"wouldAdmitCount": 1, "wouldQueueCount": 1, "wouldRejectCount": 1,
		"virtualActiveCost": 8, "virtualActiveCount": 1, "virtualQueuedCost": 8, "virtualQueuedCount": 1,
	})
	done(a)
	r.numbers("first released", map[string]any{
		"virtualActiveCost": 8, "virtualActiveCount": 1, "virtualQueuedCost": 0, "virtualQueuedCount": 0,
	})
	done(b, c)
	r.empty()
}

func TestShadowVirtualWaiterMayEndOrShrinkWhileQueued(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 40)
	s.Mode = Shadow
	r := newRig(t, s)
	a, b, c := r.ask("t", 8, Admitted), r.ask("t", 8, Admitted), r.ask("u", 8, Admitted)
	b.FirstToken()
	r.numbers("the first in the queue streams", map[string]any{"virtualQueuedCost": 8, "virtualQueuedCount": 1, "virtualActiveCost": 9})
	c.FirstToken()
	r.numbers("the other too", map[string]any{"virtualQueuedCount": 0, "virtualActiveCost": 10, "activeCost": 10})
	done(c, b, a)
	r.empty()
}

func TestConfigureRaisesLowersAndSwitches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(5, 4, 40))
		a := r.ask("t", 5, Admitted)
		b := r.ask("t", 5, Waiting)
		configure := func(s Settings) {
			t.Helper()
			if err := r.c.Configure(s); err != nil {
				t.Fatal(err)
			}
		}
		configure(limited(10, 4, 40))
		r.admitted("limit 10", b, true)
		r.numbers("limit 10", map[string]any{"activeCost": 10})
		configure(limited(5, 4, 40))
		c := r.ask("t", 1, Waiting)
		shadow := limited(5, 4, 40)
		shadow.Mode = Shadow
		configure(shadow)
		r.admitted("shadow", c, true)
		time.Sleep(2 * time.Second)
		r.numbers("after its deadline", map[string]any{"rejectedCount": 0, "activeCount": 3})
		d := r.ask("t", 90, Admitted)
		configure(limited(5, 4, 40))
		r.ask("t", 5, Waiting).Cancel() // what ran in shadow counts now
		done(a, b, c, d)
		r.empty()
	})
}

func TestConfigureRefusesTheLastToComeOfASmallerQueue(t *testing.T) {
	t.Parallel()
	for _, lanes := range []bool{false, true} {
		s := limited(10, 4, 40)
		s.VirtualLanes = lanes
		r := newRig(t, s)
		hold := r.ask("a", 10, Admitted)
		first, second, third := r.ask("a", 2, Waiting), r.ask("b", 2, Waiting), r.ask("a", 2, Waiting)
		s.MaxQueueCount, s.MaxQueueCost = 2, 4
		if lanes {
			s.MaxQueueCount = 1
		}
		if err := r.c.Configure(s); err != nil {
			t.Fatal(err)
		}
		r.refused("the third", third, QueueFull)
		done(hold)
		r.admitted("the first", first, true)
		r.admitted("the second", second, true)
		done(first, second, third)
		r.empty()
	}
}

func TestConfigureKeepsTheOldSettingsWhenTheNewAreBad(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	bad := limited(20, 4, 40)
	bad.DecreaseFactor = 7
	if err := r.c.Configure(bad); err == nil || !strings.Contains(err.Error(), "decreaseFactor") {
		t.Errorf("got %v", err)
	}
	r.numbers("after a bad reload", map[string]any{"currentLimit": 10, "maxLimit": 100})
}

func TestConfigureKeepsTheAdaptedLimit(t *testing.T) {
	t.Parallel()
	s := baseSettings()
	r := newRig(t, s)
	r.c.Observe(Critical)
	r.numbers("critical", map[string]any{"currentLimit": 10})
	s.MaxQueueCount = 7
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	r.numbers("a reload that says nothing of the limit", map[string]any{"currentLimit": 10})
}
