package sim

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs setups in virtual time.
func bubble(t *testing.T) Runner {
	return func(s Setup, f Factory) *Result {
		t.Helper()
		var result *Result
		synctest.Test(t, func(t *testing.T) {
			var err error
			if result, err = Simulate(s, f); err != nil {
				t.Fatal(err)
			}
		})
		return result
	}
}

func check(t *testing.T, goals []Goal) {
	t.Helper()
	for _, g := range goals {
		t.Log(g)
		if !g.Met && !g.Peer {
			t.Errorf("missed: %v", g)
		}
	}
}

// What the lanes must reach, in parts small enough for every test run; all of it is behind `make sim`.
func TestFairness(t *testing.T) {
	t.Parallel()
	check(t, FairnessGoals(bubble(t), 70*time.Second))
}

func TestQuietTenants(t *testing.T) {
	t.Parallel()
	q := Quiet{Name: "log-normal", Sizes: Moderate(), Tenants: 4, Capacity: 150, WaitGoal: 1, Length: 6 * time.Minute}
	check(t, q.Goals(bubble(t)))
}

// The goal of 0.90 is judged over more seeds, longer runs and both knees by `make sim`.
func TestGoodputAtAHardKnee(t *testing.T) {
	t.Parallel()
	got, note := Ratio(bubble(t), Hard, Moderate(), capacity, []uint64{1, 2, 3, 4}, []float64{1, 1.1}, 400*time.Second)
	check(t, []Goal{atLeast("hard knee: goodput over best static", got, 0.80, "%s", note)})
}

// The goals of ten and twenty windows are judged over more seeds by `make sim`; over these few the median is near them.
func TestCapacityHalvesAndReturns(t *testing.T) {
	t.Parallel()
	for _, g := range StepGoals(bubble(t), "hard knee", Hard, Moderate(), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Log(g)
		if g.Value > 40 {
			t.Errorf("%s: %.0f windows, want at most 40", g.Name, g.Value)
		}
	}
}

func TestOverloadDoesNotBecomeNormal(t *testing.T) {
	t.Parallel()
	check(t, []Goal{DriftGoal(bubble(t), "soft knee", Soft, Moderate(), 15*time.Minute)})
}

func TestIdle(t *testing.T)    { t.Parallel(); check(t, IdleGoals(bubble(t), 10*time.Minute)) }
func TestSick(t *testing.T)    { t.Parallel(); check(t, SickGoals(bubble(t), 3*time.Minute)) }
func TestCancels(t *testing.T) { t.Parallel(); check(t, CancelGoals(bubble(t), 5*time.Minute)) }
func TestStreams(t *testing.T) { t.Parallel(); check(t, StreamGoals(bubble(t), 10*time.Minute)) }
func TestNoise(t *testing.T)   { t.Parallel(); check(t, NoiseGoals(bubble(t), 10*time.Minute)) }
func TestCredit(t *testing.T)  { t.Parallel(); check(t, CreditGoals(bubble(t))) }

func TestJain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		shares []float64
		want   float64
	}{
		{[]float64{3, 3, 3}, 1},
		{[]float64{9, 0, 0}, 1. / 3},
		{[]float64{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 20}, 1. / 11 * 1600 / 440},
		{nil, 1},
	} {
		if got := Jain(tc.shares); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("Jain(%v) = %v, want %v", tc.shares, got, tc.want)
		}
	}
}

// One job of cost 8 and 2 s on an upstream of capacity 4 that only shares runs at half speed; when the capacity doubles after
// a second, the second half takes the time it should.
func TestUpstreamShares(t *testing.T) {
	t.Parallel()
	u := Upstream{Capacity: 4, Knee: Sharing}
	x := &Exchange{}
	u.start(x, 8, 2*time.Second)
	if at, some := u.next(); !some || at != 4*time.Second {
		t.Errorf("ends at %v, want 4s", at)
	}
	u.advance(2 * time.Second)
	u.Capacity = 8
	if at, some := u.next(); !some || at != 3*time.Second {
		t.Errorf("with twice the capacity from 2s on it ends at %v, want 3s", at)
	}
	u.advance(3 * time.Second)
	if u.due() != x {
		t.Error("not due at its end")
	}
	if want := 4*2 + 8*1.; math.Abs(u.busy-want) > 1e-9 {
		t.Errorf("delivered %v cost·s, want %v", u.busy, want)
	}
}

func TestTraces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		open     func() (*Trace, error)
		requests int
	}{{"conversations", Conversations, 19366}, {"code", Code, 8819}} {
		trace, err := tc.open()
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if len(trace.sizes) != tc.requests {
			t.Errorf("%s: %d requests, want %d", tc.name, len(trace.sizes), tc.requests)
		}
	}
}
