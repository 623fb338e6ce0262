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
