package budget

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// Given a busy controller, the snapshot's JSON has the fields of the health endpoint and nothing else.
func TestSnapshotJSON(t *testing.T) {
	t.Parallel()
	scenario{
		budget: 100, settings: slots(3),
		pressure: &memory.Pressure{Severity: memory.High, Signal: "memory_ratio", Value: 0.9, Threshold: 0.85},
	}.play(t, func(r *rig) {
		r.admit(request("lane_a", 90))
		r.wait(request("lane_a", 20))
		r.wait(request("lane_b", 30))
		r.wait(request("lane_b", 30))
		r.refuse(request("lane_c", 101), Refusal{Reason: BodyExceedsBudget})
		got, err := json.MarshalIndent(r.c.Snapshot(), "", " ")
		if err != nil {
			r.t.Fatal(err)
		}
		const want = `{
 "activeHeavy": 1,
 "activeHealthyHeadroom": 0,
 "waiting": 3,
 "queuedBytes": 80,
 "shedTotal": 1,
 "shedsByReason": {
  "body_exceeds_budget": 1
 },
 "inflightBytes": 90,
 "maxInflightBytes": 100,
 "budgetSource": "cgroup",
 "effectiveCeiling": 3200,
 "pressureSeverity": "high",
 "pressureReason": "memory_ratio",
 "pressureValue": 0.9,
 "pressureThreshold": 0.85,
 "countCapEnabled": true,
 "lanes": [
  {
   "key": "lane_a",
   "waiting": 1
  },
  {
   "key": "lane_b",
   "waiting": 2
  }
 ]
}`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			r.t.Errorf("snapshot (-want +got):\n%s", diff)
		}
	})
}

// Given no pressure probe, pressure is normal; an idle controller shows empty collections, not null.
func TestSnapshotOfAnIdleController(t *testing.T) {
	t.Parallel()
	s := New(DefaultSettings(), memory.Budget{Bytes: 1<<53 - 1}, nil).Snapshot()
	want := Snapshot{
		MaxInflightBytes: 1<<53 - 1, PressureSeverity: "normal", ShedsByReason: map[Reason]int64{}, Lanes: []LaneSnapshot{},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}
