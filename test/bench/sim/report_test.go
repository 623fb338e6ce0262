//go:build sim

package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/sim"
)

var out = flag.String("out", "", "file for the report, as JSON")

// The controller was tuned on some seeds of the rows, and is judged on others. The goals before the rows have seeds from 1 on,
// which are not among those either.
var (
	tuningSeeds  = []uint64{11, 12, 13, 14}
	judgingSeeds = []uint64{1001, 1002, 1003}
)

// report is the whole of the simulation. It is behind a build tag because it takes minutes.
type report struct {
	t       *testing.T
	Tuning  []uint64   `json:"tuningSeeds"`
	Judging []uint64   `json:"judgingSeeds"`
	Goals   []sim.Goal `json:"goals"`
}

func (r *report) add(goals ...sim.Goal) {
	for _, g := range goals {
		fmt.Println(g)
	}
	r.Goals = append(r.Goals, goals...)
}

func (r *report) run(s sim.Setup, f sim.Factory) *sim.Result {
	var result *sim.Result
	synctest.Test(r.t, func(t *testing.T) {
		var err error
		if result, err = sim.Simulate(s, f); err != nil {
			t.Fatal(err)
		}
	})
	return result
}

func TestSim(t *testing.T) {
	r := &report{t: t, Tuning: tuningSeeds, Judging: judgingSeeds}
	fmt.Printf("rows: tuned on seeds %v, judged on %v\n", tuningSeeds, judgingSeeds)
	conversations, err := sim.Conversations()
	if err != nil {
		t.Fatal(err)
	}
	code, err := sim.Code()
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]sim.Sizes{"log-normal": sim.Moderate(), "conversations": conversations.Sizes(), "code": code.Sizes()}
	peers := sim.Peers{"no limit": sim.Unlimited, "failsafe-go": Failsafe, "one queue": sim.FIFO(sim.Enforcing())}
	seeds := make([]uint64, 60) // from seed to seed the goodput varies by 5 %, and the return takes from 1 to 90 windows
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}

	r.add(sim.FairnessGoals(r.run, 5*time.Minute)...)
	for _, q := range []sim.Quiet{
		{Name: "log-normal", Sizes: sizes["log-normal"], Tenants: 4, Capacity: 150, WaitGoal: 1},
		{Name: "conversations", Sizes: sizes["conversations"], Replay: conversations, Tenants: 4, Capacity: 150, WaitGoal: 1.75},
		{Name: "code", Sizes: sizes["code"], Tenants: 4, Capacity: 150, WaitGoal: 1.75},
	} {
		q.Length = 15 * time.Minute
		r.add(q.Goals(r.run)...)
	}
	r.add(sim.GoodputGoals(r.run, "hard", sim.Hard, sizes, peers, seeds, 10*time.Minute)...)
	r.add(sim.GoodputGoals(r.run, "soft", sim.Soft, sizes, peers, seeds, 10*time.Minute)...)
	r.figures(sizes, conversations, code)
	for _, name := range []string{"log-normal", "conversations", "code"} {
		r.add(sim.StepGoals(r.run, name, sim.Hard, sizes[name], seeds[:24])...)
	}
	for _, name := range []string{"log-normal", "conversations", "code"} {
		r.add(sim.DriftGoal(r.run, "hard knee, "+name, sim.Hard, sizes[name], 30*time.Minute))
		r.add(sim.DriftGoal(r.run, "soft knee, "+name, sim.Soft, sizes[name], 30*time.Minute))
	}
	r.add(sim.IdleGoals(r.run, 10*time.Minute)...)
	r.add(sim.SickGoals(r.run, 30*time.Minute)...)
	r.add(sim.CancelGoals(r.run, 30*time.Minute)...)
	r.add(sim.StreamGoals(r.run, 30*time.Minute)...)
	r.add(sim.NoiseGoals(r.run, time.Hour)...)
	r.add(sim.CreditGoals(r.run)...)
	bench := &sim.Bench{
		Run: r.run, Seeds: judgingSeeds,
		Rivals: map[string]sim.Factory{"no limit": sim.Unlimited}, Peers: map[string]sim.Factory{"failsafe-go": Failsafe},
	}
	for _, row := range sim.Rows() {
		r.add(row.Goals(bench)...)
	}
	replicas := &sim.Replicas{Run: r.run, Seeds: judgingSeeds}
	r.add(replicas.Static()...)
	r.add(replicas.Shared(2, 4, 8)...)
	r.add(replicas.Disturbed()...)
	r.finish()
}

// TestReplicas is the part about several sidecars alone.
func TestReplicas(t *testing.T) {
	r := &report{t: t}
	replicas := &sim.Replicas{Run: r.run, Seeds: judgingSeeds[:1]}
	r.add(replicas.Static()...)
	r.add(replicas.Shared(2, 4, 8)...)
	r.add(replicas.Disturbed()...)
}

// figures beyond the goals: capacities far from the initial limit, more tenants than the limit has room for, bursts. None of
// them is a goal, all of them are worth knowing.
func (r *report) figures(sizes map[string]sim.Sizes, conversations, code *sim.Trace) {
	for _, capacity := range []float64{40, 150} {
		for _, name := range []string{"log-normal", "conversations", "code"} {
			r.ratio("hard", sim.Hard, name, sizes[name], capacity)
			r.ratio("soft", sim.Soft, name, sizes[name], capacity)
		}
	}
	for _, q := range []sim.Quiet{
		{Name: "log-normal", Sizes: sizes["log-normal"], Tenants: 10, Capacity: 64},
		{Name: "conversations", Sizes: sizes["conversations"], Replay: conversations, Tenants: 10, Capacity: 64},
		{Name: "code, its bursts", Sizes: sizes["code"], Replay: code, Tenants: 4, Capacity: 150},
	} {
		q.Length = 15 * time.Minute
		for _, g := range q.Goals(r.run) {
			g.Peer = true
			r.add(g)
		}
	}
}

func (r *report) ratio(knee string, f sim.Knee, name string, sizes sim.Sizes, capacity float64) {
	value, note := sim.Ratio(r.run, f, sizes, capacity, []uint64{1, 2}, []float64{1, 1.1, 1.3, 1.6}, 10*time.Minute)
	label := fmt.Sprintf("%s knee, capacity %.0f, %s: goodput over best static", knee, capacity, name)
	r.add(sim.Goal{Name: label, Value: value, Note: note, Peer: true})
}

// finish writes the report, and fails the test for what was missed.
func (r *report) finish() {
	if *out != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.MkdirAll(filepath.Dir(*out), 0o755)
		}
		if err == nil {
			err = os.WriteFile(*out, append(raw, '\n'), 0o644)
		}
		if err != nil {
			r.t.Errorf("write the report: %v", err)
		}
	}
	for _, g := range r.Goals {
		if !g.Peer && !g.Met {
			r.t.Errorf("missed: %v", g)
		}
	}
}
