package main

import (
	"strings"
	"testing"
)

// TestGoalsAreJudgedByTheirMedian: a missed figure says so, and one that was not measured is never met.
func TestGoalsAreJudgedByTheirMedian(t *testing.T) {
	t.Parallel()
	samples := func(values ...float64) (all []figures) {
		for _, v := range values {
			all = append(all, figures{PerSecond: v, CPUMicros: v, EnvoyMicros: 100})
		}
		return all
	}
	noop := samples(100, 100, 100)
	r := report{Rows: []row{
		newRow(eight, "POST 4 KiB", noopServer, noop, noop),
		newRow(eight, "POST 4 KiB", withoutWitness, samples(70, 75, 200), noop),
		newRow(eight, "POST 4 KiB", bytesOnly, samples(100, 150, 200), noop),
		newRow(eight, "POST 4 KiB", envoyAlone, samples(0, 0, 0), noop),
		newRow(sixtyFour, "POST 4 KiB", noopServer, noop, noop),
		newRow(sixtyFour, "POST 4 KiB", withoutWitness, samples(101, 104, 110), noop),
	}, Held: []held{{withoutWitness, 10, 24 * 1024}}}
	want := map[string]string{
		"server's processor time, 4 KiB with lanes, to no-op":            "0.75 (0.70–2.00) met",
		"server's processor time, 1 MiB streamed, to no-op":              "– not measured",
		"Envoy and server, 4 KiB on an ungoverned route, to Envoy alone": "2.50 (2.00–3.00) missed",
		"KiB for a held stream, 10 held":                                 "24.00 met",
		"throughput at 64 connections, to no-op":                         "1.04 (1.01–1.10) missed",
		"added p50 at 60 % of capacity, to no-op's":                      "– not measured",
	}
	all := r.outcomes()
	for _, o := range all {
		if said, listed := want[o.Goal]; listed && said != o.figure()+" "+o.verdict() {
			t.Errorf("%s: got %s %s, want %s", o.Goal, o.figure(), o.verdict(), said)
		}
		delete(want, o.Goal)
	}
	if len(want) > 0 {
		t.Errorf("no goals %v", want)
	}
	r.Goals = all
	for what, text := range map[string]string{"page": r.markdown(), "picture": r.svg(eight, "POST 4 KiB")} {
		if !strings.Contains(text, "Envoy alone") || !strings.Contains(text, withoutWitness) {
			t.Errorf("the %s does not name the servers:\n%s", what, text)
		}
	}
}

// TestAddedLatencyIsBeyondEnvoys: 3 ms with us and 2 ms with the no-op, of which Envoy alone takes 1 ms, are twice as much.
func TestAddedLatencyIsBeyondEnvoys(t *testing.T) {
	t.Parallel()
	at := func(server string, p50 float64) latency {
		return latency{Server: server, Share: shares[1], Samples: []figures{{P50Micros: p50}}}
	}
	r := report{Latencies: []latency{at(envoyAlone, 1000), at(noopServer, 2000), at(withoutWitness, 3000)}}
	if got := r.added("", func(f figures) float64 { return f.P50Micros }); !got.Measured || got.Figure.Median != 2 {
		t.Errorf("got %+v, want 2", got)
	}
}

func TestSettingsAreRead(t *testing.T) {
	t.Parallel()
	got, err := parsePlans("h1/tcp/8,h2/unix/64", nil)
	if err != nil || len(got) != 2 || got[0].setting != eight || got[1].setting != (setting{"envoy", "h2", "unix", 64}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "h1", "h3/tcp/8", "h1/pipe/8", "h1/tcp/0", "h1/tcp/many"} {
		if _, err := parsePlans(bad, nil); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}
