package main

import (
	"context"
	"fmt"
	"os"

	"github.com/headgate/headgate/test/bench/load"
)

// shares of the capacity at which latencies are measured.
var shares = []float64{0.3, 0.6, 0.8}

// pacedConnections bounds what is under way; so many are busy only where requests pile up.
const pacedConnections = 128

// latency is what requests took that were due at a rate, whether or not earlier ones were answered.
type latency struct {
	Server    string    `json:"server"`
	Shape     string    `json:"shape"`
	Share     float64   `json:"share"`     // of the capacity
	PerSecond float64   `json:"perSecond"` // that were due
	Median    figures   `json:"median"`
	Samples   []figures `json:"samples"`
}

// latencies measures at shares of one capacity, so that all servers have the same to do: that of the baseline, which is found
// here, by as many connections as keep it busy.
func (b *bench) latencies(ctx context.Context, shape load.Shape) ([]latency, error) {
	s := setting{Mode: "envoy", Protocol: "h1", Socket: "tcp", Connections: 64}
	arms := b.armsOf(s.Mode)
	found, err := b.rounds(ctx, "capacity", arms[:1], func(a *arm, _ int) (figures, error) { return a.run(ctx, s, shape, b.duration) })
	if err != nil {
		return nil, err
	}
	capacity := median(collect(found[0], func(f figures) float64 { return f.PerSecond }))
	s.Connections = pacedConnections
	var all []latency
	for _, share := range shares {
		rate := share * capacity
		samples, err := b.rounds(ctx, fmt.Sprintf("latency at %.0f %%", 100*share), arms, func(a *arm, round int) (figures, error) {
			return a.account(ctx, s.Mode, func() (load.Result, error) {
				return load.Pace(ctx, a.load(s, shape, b.duration), rate, uint64(round)) //nolint:gosec // not negative
			})
		})
		if err != nil {
			return nil, err
		}
		for i, a := range arms {
			all = append(all, latency{a.name, shape.Name, share, rate, medians(samples[i]), samples[i]})
		}
	}
	fmt.Fprintln(os.Stderr)
	return all, nil
}
