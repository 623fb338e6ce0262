package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// decisions are how much longer the lanes take for a request where there are many tenants, or many route clusters, than where
// there are few: the ratios of each round.
type decisions struct {
	Tenants  []float64 `json:"tenants,omitempty"`  // 10 000 to 10
	Clusters []float64 `json:"clusters,omitempty"` // 200 to 1
}

func (d decisions) outcome(goal string, all []float64) outcome {
	return outcome{Goal: goal, Figure: rangeOf(all), Measured: len(all) > 0}
}

// decisionTime is how long one figure is measured.
const decisionTime = 200 * time.Millisecond

// decide measures the lanes alone: a request is admitted and released, of each tenant and route cluster in turn.
func (b *bench) decide() (d decisions, err error) {
	testing.Init()
	if err := flag.Set("test.benchtime", decisionTime.String()); err != nil {
		return d, fmt.Errorf("set the length: %w", err)
	}
	for round := range b.options.rounds {
		fmt.Fprintf(os.Stderr, "\rdecisions: round %d of %d             ", round+1, b.options.rounds)
		few, many := decision(1, 10), decision(1, 10_000)
		one, clusters := decision(1, 64), decision(200, 64)
		if few == 0 || many == 0 || one == 0 || clusters == 0 {
			return d, fmt.Errorf("the measurement of decisions failed")
		}
		d.Tenants = append(d.Tenants, many/few)
		d.Clusters = append(d.Clusters, clusters/one)
	}
	fmt.Fprintln(os.Stderr)
	return d, nil
}

// decision returns the nanoseconds of one decision.
func decision(clusters, tenants int) float64 {
	s := adaptive.DefaultSettings()
	s.Mode, s.VirtualLanes = adaptive.Enforce, true
	s.MinLimit, s.InitialLimit, s.MaxLimit = 1_000_000, 1_000_000, 1_000_000
	registry := adaptive.NewRegistry(func(string) adaptive.Settings { return s }, 2*tenants)
	clusterNames, lanes := names("cluster-", clusters), names("lane_", tenants)
	r := testing.Benchmark(func(b *testing.B) {
		p := new(adaptive.Permit)
		for i := range b.N {
			c := registry.Controller(clusterNames[i%clusters])
			if c.Acquire(p, adaptive.Request{Lane: lanes[i%tenants], Cost: 5, Forward: true}) != adaptive.Admitted {
				b.Fatalf("%s: not admitted", lanes[i%tenants])
			}
			p.Done(adaptive.OK)
		}
	})
	if r.N == 0 {
		return 0
	}
	return float64(r.T.Nanoseconds()) / float64(r.N)
}

func names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + strconv.Itoa(i)
	}
	return all
}
