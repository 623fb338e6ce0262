package adaptive

import (
	"reflect"
	"testing"
	"time"
)

func TestTotalsAreTheSnapshotWithoutItsTenants(t *testing.T) {
	t.Parallel()
	// given a cluster with one exchange in flight and two lanes with waiters
	s := DefaultSettings()
	s.Mode, s.VirtualLanes = Enforce, true
	s.MinLimit, s.InitialLimit, s.MaxLimit, s.MaxShare, s.MaxWait = 8, 8, 8, 1, time.Hour
	r := NewRegistry(func(string) Settings { return s }, 0)
	t.Cleanup(r.Shutdown)
	permits := make([]Permit, 4)
	for i, lane := range []string{"lane_a", "lane_a", "lane_b", "lane_b"} {
		r.Controller("chat").Acquire(&permits[i], Request{Lane: lane, Cost: 8})
	}
	// when both are asked for
	full, totals := r.Snapshot()["chat"], r.Totals()["chat"]
	// then they differ in the lanes' own figures only
	if len(full.LaneTenants) != 2 || full.LaneQueuedCount != 3 || len(totals.LaneTenants) != 0 {
		t.Errorf("%d lanes with %d waiters, and %d lanes in the totals; want 2 with 3, and 0", len(full.LaneTenants), full.LaneQueuedCount, len(totals.LaneTenants))
	}
	full.LaneTenants, totals.LaneTenants = nil, nil
	if !reflect.DeepEqual(full, totals) {
		t.Errorf("totals %+v, want %+v", totals, full)
	}
}
