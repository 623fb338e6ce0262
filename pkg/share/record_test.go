package share

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/adaptive"
)

// full is a report of n lanes with all the evidence there can be.
func full(n int) adaptive.Report {
	r := adaptive.Report{Most: math.MaxInt32, Limit: 100}
	e := &r.Evidence
	e.Epoch, e.Busy, e.Capacity, e.Completed, e.Waiting = math.MaxUint32, 1e9, 1e9, 1e6, true
	for i := range e.Samples {
		e.Samples[i].N = 1e6
		for k := range e.Samples[i].Classes {
			e.Samples[i].Classes[k] = adaptive.ClassSum{Latency: 1e12, Cost: 1e6}
		}
	}
	for i := range n {
		key := adaptive.KeyOf(fmt.Sprint("lane_", i))
		r.Lanes = append(r.Lanes, adaptive.LaneReport{Key: key, Weight: 1, Demand: float64(1 + i%10), Work: 1e9})
		e.Lanes = append(e.Lanes, adaptive.Answers{Lane: key, All: 100, Refused: float64(i % 7), Failed: 1})
	}
	return r
}

// However many lanes there are, and however much there is to say of them, what a member writes in a window has less than 4 KiB: the
// record, and the group's state where it takes the step.
func TestRecordIsBounded(t *testing.T) {
	state, err := adaptive.NewLearner(64).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	const states = 1280 // at most, see adaptive.TestLearnerRecord
	if len(state) > states {
		t.Fatalf("a state has %d bytes, want at most %d", len(state), states)
	}
	for _, lanes := range []int{0, 1, 48, 1000, 100_000} {
		rec := newRecord(full(lanes))
		got := len(rec.encode())
		t.Logf("%d lanes: %d bytes", lanes, got)
		if got+states > 4096 {
			t.Errorf("%d lanes: %d bytes and up to %d of the state, want at most 4096 together", lanes, got, states)
		}
		var demand float64
		for _, l := range rec.lanes {
			demand += l.Demand
		}
		var want float64
		for _, l := range full(lanes).Lanes {
			want += l.Demand
		}
		if math.Abs(demand+rec.rest.Demand-want) > 1e-6*want {
			t.Errorf("%d lanes: demand %.0f and %.0f of the rest, want %.0f together", lanes, demand, rec.rest.Demand, want)
		}
	}
}

func TestRecordReadsAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := func(name string) float64 { return float64(rapid.IntRange(0, 1000).Draw(t, name)) } // exact as float32
		r := adaptive.Report{Most: rapid.IntRange(0, 1000).Draw(t, "most")}
		e := &r.Evidence
		e.Epoch, e.Busy, e.Capacity, e.Completed, e.Waiting = rapid.Uint32().Draw(t, "epoch"), small("busy"), small("capacity"), rapid.IntRange(0, 1000).Draw(t, "completed"), rapid.Bool().Draw(t, "waiting")
		e.Answers = adaptive.Answers{All: small("all"), Refused: small("refused"), Failed: small("failed")}
		e.Samples[0].N = rapid.IntRange(0, 100).Draw(t, "n")
		e.Samples[0].Classes[rapid.IntRange(0, 39).Draw(t, "class")] = adaptive.ClassSum{Latency: small("latency"), Cost: 1 + small("cost")}
		for range rapid.IntRange(0, 60).Draw(t, "lanes") {
			r.Lanes = append(r.Lanes, adaptive.LaneReport{Key: adaptive.LaneKey(rapid.Uint64().Draw(t, "key")), Weight: small("weight"), Demand: small("demand"), Work: rapid.Float64Range(0, 1e12).Draw(t, "work")})
		}
		rec := newRecord(r)
		got, err := decode(rec.encode())
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(rec) {
			t.Errorf("read\n%v\nwant\n%v", got, rec)
		}
	})
}

// Whatever a store answers, a record is read or refused, and what was read can be counted with.
func FuzzRecord(f *testing.F) {
	one, many := newRecord(full(1)), newRecord(full(1000))
	f.Add(one.encode())
	f.Add(many.encode())
	f.Add([]byte{recordFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		l := adaptive.NewLearner(64)
		l.Step(adaptive.DefaultSettings(), []adaptive.Evidence{r.evidence})
		parts := divide(64, []need{{"a", &r}, {"b", &r}})
		if parts[0] < 1 || parts[0]+parts[1] > 64+2 {
			t.Errorf("parts %v of 64", parts)
		}
	})
}
