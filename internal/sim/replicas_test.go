package sim

import (
	"strings"
	"testing"
)

// Replicas that divide the bounds of the limit among them always have something good; not divided, eight have nothing for minutes.
// The goals that are left out here, all sums and the soft knee, are behind `make sim`.
func TestReplicasEachWithItsPart(t *testing.T) {
	t.Parallel()
	b := &Replicas{Run: bubble(t), Seeds: []uint64{1, 2}, Brief: true}
	for _, g := range b.Static() {
		t.Log(g)
		if !g.Met && !g.AtMost && !strings.Contains(g.Name, "soft knee") {
			t.Errorf("missed: %v", g)
		}
	}
}

// Replicas that share one limit serve quiet tenants alike, and together never take much more than before when the store is away.
// The other goals are printed, met or missed: docs/replicas.md says which are missed. The whole table
// is behind `make sim-replicas`.
func TestReplicasShare(t *testing.T) {
	t.Parallel()
	b := &Replicas{Run: bubble(t), Seeds: []uint64{1}, Brief: true}
	held := 0
	for _, g := range append(b.Shared(4), b.Disturbed()...) {
		t.Log(g)
		if !strings.Contains(g.Name, "Jain") && !strings.Contains(g.Name, "highest sum") {
			continue
		}
		held++
		if !g.Met {
			t.Errorf("missed: %v", g)
		}
	}
	if held != 12 {
		t.Errorf("%d goals are held, want Jain of nine and the sum of three", held)
	}
}
