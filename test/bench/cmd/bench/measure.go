package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/headgate/headgate/test/bench/direct"
	"github.com/headgate/headgate/test/bench/load"
	"github.com/headgate/headgate/test/bench/usage"
)

const warmUp = 300 * time.Millisecond

// figures are what one run of one server measured.
type figures struct {
	PerSecond   float64 `json:"perSecond"`
	CPUMicros   float64 `json:"cpuMicros"`             // of the server, per request
	EnvoyMicros float64 `json:"envoyMicros,omitempty"` // of Envoy, per request
	P50Micros   float64 `json:"p50Micros,omitempty"`
	P99Micros   float64 `json:"p99Micros,omitempty"`
	Allocs      float64 `json:"allocs"`          // of the server, objects per request
	AllocBytes  float64 `json:"allocBytes"`      // of the server, per request
	Spans       float64 `json:"spans,omitempty"` // exported, per request
}

// measure runs all rounds of one mode.
func (b *bench) measure(ctx context.Context, mode string) ([]row, error) {
	var rows []row
	for _, shape := range b.selected(mode) {
		samples := make([][]figures, len(b.arms))
		for round := range b.rounds + 1 {
			fmt.Fprintf(os.Stderr, "\r%s %s: round %d of %d   ", mode, shape.Name, round, b.rounds)
			duration := b.duration
			if round == 0 {
				duration = warmUp
			}
			measured, err := b.round(ctx, round, mode, shape, duration)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				for i, f := range measured {
					samples[i] = append(samples[i], f)
				}
			}
		}
		for i, a := range b.arms {
			rows = append(rows, newRow(mode, shape.Name, a.name, samples[i], samples[0]))
		}
	}
	fmt.Fprintln(os.Stderr)
	return rows, nil
}

// round measures every server once: one after the other, or all at the same time.
func (b *bench) round(ctx context.Context, n int, mode string, shape load.Shape, duration time.Duration) ([]figures, error) {
	measured, failures := make([]figures, len(b.arms)), make([]error, len(b.arms))
	var all sync.WaitGroup
	for turn := range b.arms {
		i := (turn + n) % len(b.arms) // nobody is always first
		all.Go(func() {
			a := b.arms[i]
			var err error
			if measured[i], err = a.run(ctx, mode, shape, b.connections, duration); err != nil {
				failures[i] = fmt.Errorf("%s, %s: %w\n%s", a.name, mode, err, a.server.Tail())
			}
		})
		if !b.telemetry {
			all.Wait()
		}
	}
	all.Wait()
	return measured, errors.Join(failures...)
}

// run measures one server for one duration.
func (a *arm) run(ctx context.Context, mode string, shape load.Shape, connections int, duration time.Duration) (figures, error) {
	before, err := a.count(ctx)
	if err != nil {
		return figures{}, err
	}
	stopScraping := func() error { return nil }
	if a.scraped {
		stopScraping = a.scrape(ctx)
	}
	var f figures
	var requests float64
	switch mode {
	case "envoy":
		r, err := load.Run(ctx, load.Options{Address: a.envoy.Address, Shape: shape, Connections: connections, Duration: duration})
		if err != nil {
			return figures{}, err
		}
		requests = float64(r.Requests)
		f = figures{PerSecond: requests / r.Elapsed.Seconds(), P50Micros: micros(r.P50), P99Micros: micros(r.P99)}
	case "direct":
		r, err := direct.Run(ctx, direct.Options{Address: a.grpc, Shape: shape, Streams: connections, Duration: duration})
		if err != nil {
			return figures{}, err
		}
		requests = float64(r.Exchanges)
		f = figures{PerSecond: requests / r.Elapsed.Seconds()}
	default:
		return figures{}, fmt.Errorf("unknown mode %q, want envoy or direct", mode)
	}
	if err := stopScraping(); err != nil {
		return figures{}, err
	}
	time.Sleep(a.settle)
	after, err := a.count(ctx)
	if err != nil {
		return figures{}, err
	}
	f.CPUMicros = micros(after.server-before.server) / requests
	if mode == "envoy" {
		f.EnvoyMicros = micros(after.envoy-before.envoy) / requests
	}
	f.Allocs = float64(after.allocated.Objects-before.allocated.Objects) / requests
	f.Spans = float64(after.spans-before.spans) / requests
	f.AllocBytes = float64(after.allocated.Bytes-before.allocated.Bytes) / requests
	return f, nil
}

// counters are those of a server and its Envoy.
type counters struct {
	server, envoy time.Duration
	spans         int64
	allocated     usage.Allocations
}

func (a *arm) count(ctx context.Context) (c counters, err error) {
	if c.server, err = usage.CPU(a.server.PID()); err != nil {
		return c, err
	}
	if a.envoy != nil {
		if c.envoy, err = usage.CPU(a.envoy.PID()); err != nil {
			return c, err
		}
	}
	if a.spans != nil {
		c.spans = a.spans.Load()
	}
	c.allocated, err = usage.Allocated(ctx, a.admin)
	return c, err
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
