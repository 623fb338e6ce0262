package adaptive

import "testing"

// Each of n replicas has its part of what all of them may have together.
func TestReplicasDivideTheBounds(t *testing.T) {
	for _, tc := range []struct{ replicas, least, initial, most int }{
		{1, 8, 64, 1000}, {2, 4, 32, 500}, {3, 3, 21, 333}, {8, 1, 8, 125}, {1000, 1, 1, 1},
	} {
		s := DefaultSettings()
		s.Mode, s.Replicas = Enforce, tc.replicas
		got := mustNew(t, s).Totals()
		if got.MinLimit != tc.least || got.CurrentLimit != tc.initial || got.MaxLimit != tc.most {
			t.Errorf("%d replicas: limit %d in %d..%d, want %d in %d..%d", tc.replicas, got.CurrentLimit, got.MinLimit, got.MaxLimit, tc.initial, tc.least, tc.most)
		}
	}
}

// A request takes as much of the whole limit before several replicas as before one, and fits into the part that it reaches: none is
// oversized that one replica would serve.
func TestReplicasDoNotShrinkPlaces(t *testing.T) {
	s := DefaultSettings()
	s.Mode = Enforce
	for _, tc := range []struct{ replicas, cost, place int }{
		{1, 7, 7}, {8, 7, 7}, {1, 1000, 16}, {4, 1000, 16}, {8, 1000, 8},
	} {
		s.Replicas = tc.replicas
		r := newRig(t, s)
		p := r.ask("a", tc.cost, Admitted)
		if got := r.c.Totals().ActiveCost; got != tc.place {
			t.Errorf("%d replicas, limit %d: a request of cost %d takes %d, want %d", tc.replicas, r.c.Totals().CurrentLimit, tc.cost, got, tc.place)
		}
		p.Done(OK)
	}
}

// A new number of replicas moves the limit to its new part.
func TestReplicasChange(t *testing.T) {
	s := DefaultSettings()
	s.Mode, s.Replicas = Enforce, 4
	r := newRig(t, s)
	s.Replicas = 2
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	if got := r.c.Totals().CurrentLimit; got != 32 {
		t.Errorf("two replicas instead of four: limit %d, want 32", got)
	}
	s.Replicas = 0
	if err := r.c.Configure(s); err == nil {
		t.Error("0 replicas: no error")
	}
}
