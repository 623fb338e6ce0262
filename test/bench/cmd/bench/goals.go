package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// outcome is a goal and what was measured of it.
type outcome struct {
	Goal     string  `json:"goal"`
	Figure   ratio   `json:"figure"` // and its range over the rounds, where it has one
	AtMost   float64 `json:"atMost,omitempty"`
	AtLeast  float64 `json:"atLeast,omitempty"`
	Measured bool    `json:"measured"`
}

func (o outcome) met() bool {
	return o.Measured && (o.AtMost == 0 || o.Figure.Median <= o.AtMost) && o.Figure.Median >= o.AtLeast
}

func (o outcome) verdict() string {
	switch {
	case !o.Measured:
		return "not measured"
	case o.met():
		return "met"
	}
	return "missed"
}

func (o outcome) want() string {
	if o.AtLeast > 0 {
		return fmt.Sprintf(">= %g", o.AtLeast)
	}
	return fmt.Sprintf("<= %g", o.AtMost)
}

func (o outcome) figure() string {
	switch {
	case !o.Measured:
		return "–"
	case o.Figure.Min == o.Figure.Max:
		return fmt.Sprintf("%.2f", o.Figure.Median)
	}
	return o.Figure.String()
}

// eight is the setting of most goals.
var (
	eight     = setting{Mode: "envoy", Protocol: "h1", Socket: "tcp", Connections: 8}
	sixtyFour = setting{Mode: "envoy", Protocol: "h1", Socket: "tcp", Connections: 64}
	replayed  = setting{Mode: "direct", Connections: 8}
)

// outcomes compares the figures with the goals.
func (r report) outcomes() []outcome {
	server := func(f figures) float64 { return f.CPUMicros }
	rate := func(f figures) float64 { return f.PerSecond }
	allocs := func(f figures) float64 { return f.Allocs }
	const small, large = "POST 4 KiB", "POST 1 MiB"
	all := []outcome{
		r.compare("server's processor time, 4 KiB with lanes, to no-op", eight, small, withoutWitness, noopServer, server).atMost(0.80),
		r.compare("server's processor time, 1 MiB streamed, to no-op", eight, large, withoutWitness, noopServer, server).atMost(0.60),
		r.compare("server's processor time, 1 MiB framed, to no-op", eight, large, framedBytes, noopServer, server).atMost(0.12),
		r.compare("Envoy and server, 4 KiB on an ungoverned route, to Envoy alone", eight, small, bytesOnly, envoyAlone, figures.whole).atMost(2),
		r.compare("whole processor time, leased, to ratelimit's", eight, small, withLeases, rateLimiter, figures.whole).atMost(1),
		r.added("added p50 at 60 % of capacity, to no-op's", func(f figures) float64 { return f.P50Micros }).atMost(0.9),
		r.added("added p99 at 60 % of capacity, to no-op's", func(f figures) float64 { return f.P99Micros }).atMost(1),
		r.beyond("allocations an exchange beyond gRPC's own", allocs).atMost(12),
		r.heldKiB("KiB for a held stream").atMost(24),
		r.compare("throughput at 64 connections, to no-op", sixtyFour, small, withoutWitness, noopServer, rate).atLeast(1.05),
		r.Decisions.outcome("ns a decision, 10 000 tenants to 10", r.Decisions.Tenants).atMost(1.5),
		r.Decisions.outcome("ns a decision, 200 clusters to 1", r.Decisions.Clusters).atMost(1.2),
	}
	return all
}

func (o outcome) atMost(v float64) outcome  { o.AtMost = v; return o }
func (o outcome) atLeast(v float64) outcome { o.AtLeast = v; return o }

// compare is the median over the rounds of one server's figure to another's within a round.
func (r report) compare(goal string, s setting, shape, server, to string, of func(figures) float64) outcome {
	a, b := r.find(s, shape, server), r.find(s, shape, to)
	if a == nil || b == nil {
		return outcome{Goal: goal}
	}
	return outcome{Goal: goal, Figure: newRatio(a.Samples, b.Samples, of), Measured: true}
}

// added compares what the processor adds to the latency of Envoy alone with what a no-op adds, at 60 % of the capacity.
func (r report) added(goal string, of func(figures) float64) outcome {
	var alone, noop, ours []figures
	for _, l := range r.Latencies {
		if l.Share != shares[1] {
			continue
		}
		switch l.Server {
		case envoyAlone:
			alone = l.Samples
		case noopServer:
			noop = l.Samples
		case withoutWitness:
			ours = l.Samples
		}
	}
	if len(alone) == 0 || len(noop) == 0 || len(ours) == 0 {
		return outcome{Goal: goal}
	}
	var all []float64
	for i := range ours {
		if by := of(noop[i]) - of(alone[i]); by > 0 {
			all = append(all, (of(ours[i])-of(alone[i]))/by)
		}
	}
	return outcome{Goal: goal, Figure: rangeOf(all), Measured: len(all) > 0}
}

// beyond is what an exchange with lanes takes beyond what gRPC takes for the same messages.
func (r report) beyond(goal string, of func(figures) float64) outcome {
	ours, bare := r.find(replayed, "POST 4 KiB", withoutWitness), r.find(replayed, "POST 4 KiB", bareServer)
	if ours == nil || bare == nil {
		return outcome{Goal: goal}
	}
	var all []float64
	for i := range ours.Samples {
		all = append(all, of(ours.Samples[i])-of(bare.Samples[i]))
	}
	return outcome{Goal: goal, Figure: rangeOf(all), Measured: true}
}

func (r report) heldKiB(goal string) outcome {
	for _, h := range r.Held {
		if h.Server == withoutWitness {
			return outcome{Goal: fmt.Sprintf("%s, %d held", goal, h.Streams), Figure: rangeOf([]float64{h.Resident / 1024}), Measured: true}
		}
	}
	return outcome{Goal: goal}
}

// printGoals says which goals are met.
func printGoals(w io.Writer, all []outcome) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\ngoal\tmeasured\twanted\t")
	for _, o := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", o.Goal, o.figure(), o.want(), o.verdict())
	}
	t.Flush()
}
