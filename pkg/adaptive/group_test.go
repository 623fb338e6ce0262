package adaptive

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// fieldCount counts the fields of a struct that hold a value, in structs and arrays too.
func fieldCount(t reflect.Type) (n int) {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			n += fieldCount(t.Field(i).Type)
		}
		return n
	case reflect.Array:
		return t.Len() * fieldCount(t.Elem())
	}
	return 1
}

// A group's record has all of the state: a field that is missing would be lost whenever another member takes the next step.
func TestLearnerRecordIsComplete(t *testing.T) {
	numbers := new(state).numbers()
	if got, want := len(numbers), fieldCount(reflect.TypeFor[state]()); got != want {
		t.Fatalf("the record has %d numbers, the state %d: add what is missing to numbers", got, want)
	}
	seen := map[any]bool{}
	for _, p := range numbers {
		if seen[p] {
			t.Errorf("the record has a %T twice", p)
		}
		seen[p] = true
	}
}

// What a learner has written is what another reads, and goes on alike.
func TestLearnerRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := DefaultSettings()
		a := NewLearner(rapid.IntRange(8, 1000).Draw(t, "limit"))
		evidence := rapid.Custom(func(t *rapid.T) Evidence {
			e := Evidence{Epoch: a.epoch, Busy: rapid.Float64Range(0, 100).Draw(t, "busy"), Capacity: 100, Completed: rapid.IntRange(0, 50).Draw(t, "completed"), Waiting: rapid.Bool().Draw(t, "waiting")}
			k := rapid.IntRange(0, costClasses-1).Draw(t, "class")
			e.Samples[firstTokens] = Samples{N: 5}
			e.Samples[firstTokens].Classes[k] = ClassSum{rapid.Float64Range(1e6, 1e9).Draw(t, "latency"), 20}
			return e
		})
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			a.Step(s, []Evidence{evidence.Draw(t, "evidence")})
		}
		record, err := a.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(record) > 1280 {
			t.Errorf("the record has %d bytes, want at most 1280", len(record))
		}
		var b Learner
		if err := b.UnmarshalBinary(record); err != nil {
			t.Fatal(err)
		}
		if b.state != a.state || b.epoch != a.epoch || b.reason != a.reason || b.version != a.version {
			t.Fatalf("read %+v, want %+v", b.state, a.state)
		}
		e := []Evidence{evidence.Draw(t, "next")}
		a.Step(s, e)
		b.Step(s, e)
		if a.Limit() != b.Limit() || a.reason != b.reason {
			t.Errorf("the next step of the copy is to %d (%s), want %d (%s)", b.Limit(), b.reason, a.Limit(), a.reason)
		}
		for n := range record {
			if new(Learner).UnmarshalBinary(record[:n]) == nil {
				t.Fatalf("%d of %d bytes read without an error", n, len(record))
			}
		}
	})
}

func FuzzLearnerRecord(f *testing.F) {
	record, _ := NewLearner(64).AppendBinary(nil)
	f.Add(record)
	f.Fuzz(func(t *testing.T, b []byte) {
		l := NewLearner(1)
		if l.UnmarshalBinary(b) == nil {
			l.Step(DefaultSettings(), []Evidence{{Busy: 1, Capacity: 1, Completed: 1}})
			if s := DefaultSettings(); l.Limit() < 1 || l.Limit() > s.MaxLimit {
				t.Errorf("limit %d after a step, want 1..%d", l.Limit(), s.MaxLimit)
			}
		}
	})
}

// The step on the evidence of several members is the step on the sum: it does not matter which of them has seen what.
func TestEvidenceAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "members")
		one, several := NewLearner(64), NewLearner(64)
		for range rapid.IntRange(1, 30).Draw(t, "windows") {
			var parts []Evidence
			var sum Evidence
			for range n {
				e := Evidence{Epoch: several.epoch, Busy: float64(rapid.IntRange(0, 64).Draw(t, "busy")), Capacity: 64, Completed: rapid.IntRange(0, 9).Draw(t, "completed")}
				k := rapid.IntRange(1, 9).Draw(t, "class")
				e.Samples[firstTokens] = Samples{N: 1}
				e.Samples[firstTokens].Classes[k] = ClassSum{float64(rapid.IntRange(1, 1000).Draw(t, "latency")) * 1e6, float64(k)}
				parts = append(parts, e)
				sum.Epoch, sum.Busy, sum.Capacity, sum.Completed = one.epoch, sum.Busy+e.Busy, sum.Capacity+e.Capacity, sum.Completed+e.Completed
				for i := range e.Samples {
					sum.Samples[i].N += e.Samples[i].N
					for k, c := range e.Samples[i].Classes {
						sum.Samples[i].Classes[k].Latency += c.Latency
						sum.Samples[i].Classes[k].Cost += c.Cost
					}
				}
			}
			one.Step(DefaultSettings(), []Evidence{sum})
			several.Step(DefaultSettings(), parts)
			if one.Limit() != several.Limit() || one.reason != several.reason {
				t.Fatalf("limit %d (%s) from %d members, want %d (%s)", several.Limit(), several.reason, n, one.Limit(), one.reason)
			}
		}
	})
}

// One tenant's refusals, wherever it gets them, are not the upstream's condition; those of several are.
func TestRefusalsInAGroup(t *testing.T) {
	member := func(lanes ...Answers) (e Evidence) {
		for _, a := range lanes {
			e.Lanes = append(e.Lanes, a)
			e.Answers.All, e.Answers.Refused = e.Answers.All+a.All, e.Answers.Refused+a.Refused
		}
		e.Answers.All += 50
		return e
	}
	for _, tc := range []struct {
		name string
		seen []Evidence
		want bool
	}{
		{"one lane in both", []Evidence{member(Answers{1, 20, 10, 0}), member(Answers{1, 20, 10, 0})}, false},
		{"two lanes", []Evidence{member(Answers{1, 20, 10, 0}), member(Answers{2, 20, 10, 0})}, true},
	} {
		if got := others(tc.seen).overloaded(); got != tc.want {
			t.Errorf("%s: overloaded %v, want %v", tc.name, got, tc.want)
		}
	}
}

func shareOf(limit, whole int) Share {
	return Share{Limit: limit, Members: 4, Group: NewLearner(whole), Valid: 3 * time.Second}
}

// A member takes the share it is given, learns nothing by itself while that is valid, and then goes on alone: from there towards an
// equal part, without a jump, and never above the higher of both.
func TestShareThenAlone(t *testing.T) {
	for _, tc := range []struct{ share, whole, after60 int }{{60, 80, 20}, {5, 80, 20}, {20, 80, 20}} {
		synctest.Test(t, func(t *testing.T) {
			s := DefaultSettings()
			s.Mode = Enforce
			r := newRig(t, s)
			r.c.SetShare(shareOf(tc.share, tc.whole))
			last := tc.share
			for second := 1; second <= 300; second++ {
				time.Sleep(time.Second)
				got := r.c.Totals().CurrentLimit
				if second <= 30 && got != tc.share {
					t.Fatalf("share %d: limit %d after %d s, want it to hold", tc.share, got, second)
				}
				if most := max(tc.share, tc.whole/4); got > most || got < last-2 || got > last+2 {
					t.Fatalf("share %d of %d: limit %d after %d s, %d before; want at most %d and no jump", tc.share, tc.whole, got, second, last, most)
				}
				if second > 100 && tc.share > tc.after60 && got > tc.after60 {
					t.Fatalf("share %d: limit %d after %d s, want at most an equal part, %d", tc.share, got, second, tc.after60)
				}
				last = got
			}
			r.c.SetShare(shareOf(7, tc.whole))
			if got := r.c.Totals().CurrentLimit; got != 7 {
				t.Errorf("limit %d after the store is back, want the share, 7", got)
			}
		})
	}
}

// Critical pressure on a member lowers its own limit at once, whatever share it is given, until pressure is normal again.
func TestPressureOnAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := DefaultSettings()
		s.Mode = Enforce
		r := newRig(t, s)
		window := func() int {
			time.Sleep(time.Second)
			r.c.Report()
			r.c.SetShare(shareOf(40, 160))
			return r.c.Totals().CurrentLimit
		}
		window()
		r.c.Observe(Critical)
		if got := r.c.Totals().CurrentLimit; got != 20 {
			t.Errorf("limit %d at critical pressure, want half of 40 at once", got)
		}
		for range 5 {
			if got := window(); got > 20 {
				t.Fatalf("limit %d while pressure is critical, want at most 20", got)
			}
		}
		r.c.Observe(Normal)
		for range 30 {
			window()
		}
		if got := window(); got != 40 {
			t.Errorf("limit %d half a minute after pressure, want the share, 40", got)
		}
	})
}

// A lane that is served in other members waits here for one that is not, and for no longer than the bound on debts.
func TestWorkElsewhereCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := DefaultSettings()
		s.Mode, s.VirtualLanes, s.MaxWait, s.MaxShare = Enforce, true, time.Hour, 1
		r := newRig(t, s)
		r.c.SetShare(shareOf(4, 8))
		running := r.ask("far", 4, Admitted)
		far, near := r.ask("far", 4, Waiting), r.ask("near", 4, Waiting)
		share := shareOf(4, 8)
		share.Elsewhere = []LaneReport{{Key: KeyOf("far"), Weight: 1, Work: 50}}
		r.c.SetShare(share)
		running.Done(OK)
		r.admitted("near", near, true)
		r.admitted("far", far, false)
		share.Elsewhere[0].Work = 1e9
		r.c.SetShare(share)
		for range 40 { // near is backlogged: far's turn comes when near has caught up with the bound
			next := r.ask("near", 4, Waiting)
			time.Sleep(time.Second)
			near.Done(OK)
			if settled(far) {
				near = next
				break
			}
			near = next
		}
		r.admitted("far, though it has had 1e9 elsewhere", far, true)
		far.Done(OK)
		near.Cancel()
		near.Done(OK)
	})
}

// A report has what runs and waits by lane, and each piece of evidence once.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := DefaultSettings()
		s.Mode, s.VirtualLanes, s.MaxShare = Enforce, true, 1
		r := newRig(t, s)
		r.c.SetShare(shareOf(10, 10))
		r.c.Report()
		a, b := r.ask("a", 6, Admitted), r.ask("b", 6, Waiting)
		a.Forwarded()
		time.Sleep(time.Second)
		a.Done(OK)
		got := r.c.Report()
		demand := map[LaneKey]float64{}
		for _, l := range got.Lanes {
			demand[l.Key] = l.Demand
		}
		if len(got.Lanes) != 2 || demand[KeyOf("a")] < 2 || demand[KeyOf("b")] != 6 {
			t.Errorf("lanes %+v, want the one that ran and the one that runs, with cost 6", got.Lanes)
		}
		if got.Evidence.Completed != 1 || got.Evidence.Samples[firstTokens].N != 1 {
			t.Errorf("%d completed, %d samples, want 1 of each", got.Evidence.Completed, got.Evidence.Samples[firstTokens].N)
		}
		if again := r.c.Report(); again.Evidence.Completed != 0 || again.Evidence.Samples[firstTokens].N != 0 || again.Evidence.Busy != 0 {
			t.Errorf("the next report has %+v of it again, want nothing", again.Evidence)
		}
		b.Done(OK)
	})
}
