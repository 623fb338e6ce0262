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

// setting is a way to send requests.
type setting struct {
	Mode        string `json:"mode"` // envoy, or direct: recorded messages straight to the server
	Protocol    string `json:"protocol,omitempty"`
	Socket      string `json:"socket,omitempty"` // between Envoy and the server
	Connections int    `json:"connections"`
}

func (s setting) String() string {
	if s.Mode == "direct" {
		return fmt.Sprintf("direct, %d at a time", s.Connections)
	}
	return fmt.Sprintf("%s, %s, %d connections", s.Protocol, s.Socket, s.Connections)
}

// figures are what one run of one server measured. Processor time is per request.
type figures struct {
	PerSecond   float64 `json:"perSecond"`
	CPUMicros   float64 `json:"cpuMicros"`             // of the server
	EnvoyMicros float64 `json:"envoyMicros,omitempty"` // of Envoy
	StoreMicros float64 `json:"storeMicros,omitempty"` // of Redis
	P50Micros   float64 `json:"p50Micros,omitempty"`
	P99Micros   float64 `json:"p99Micros,omitempty"`
	Refused     float64 `json:"refused,omitempty"` // share of the requests
	Allocs      float64 `json:"allocs,omitempty"`  // of the server, objects per request
	AllocBytes  float64 `json:"allocBytes,omitempty"`
	Spans       float64 `json:"spans,omitempty"` // exported, per request
}

// whole is the processor time of all that a request takes but its client and its upstream.
func (f figures) whole() float64 { return f.CPUMicros + f.EnvoyMicros + f.StoreMicros }

// measure runs all rounds of one setting.
func (b *bench) measure(ctx context.Context, s setting, shapes []load.Shape) ([]row, error) {
	var rows []row
	for _, shape := range shapes {
		samples, err := b.rounds(ctx, fmt.Sprintf("%s: %s", s, shape.Name), b.armsOf(s.Mode), func(a *arm, round int) (figures, error) {
			duration := b.duration
			if round == 0 {
				duration = warmUp
			}
			return a.run(ctx, s, shape, duration)
		})
		if err != nil {
			return nil, err
		}
		for i, a := range b.armsOf(s.Mode) {
			rows = append(rows, newRow(s, shape.Name, a.name, samples[i], samples[0]))
		}
	}
	fmt.Fprintln(os.Stderr)
	return rows, nil
}

// armsOf are those that can be measured in a mode.
func (b *bench) armsOf(mode string) []*arm {
	var all []*arm
	for _, a := range b.arms {
		if a.only != "" && a.only != mode || mode == "direct" && !a.direct {
			continue
		}
		all = append(all, a)
	}
	return all
}

// rounds has every server measured once a round, after a round that warms up and does not count: one server after the other, or
// all at the same time.
func (b *bench) rounds(_ context.Context, what string, arms []*arm, run func(a *arm, round int) (figures, error)) ([][]figures, error) {
	samples := make([][]figures, len(arms))
	for round := range b.options.rounds + 1 {
		fmt.Fprintf(os.Stderr, "\r%s: round %d of %d             ", what, round, b.options.rounds)
		measured, failures := make([]figures, len(arms)), make([]error, len(arms))
		var all sync.WaitGroup
		for turn := range arms {
			i := (turn + round) % len(arms) // nobody is always first
			all.Go(func() {
				var err error
				if measured[i], err = run(arms[i], round); err != nil {
					failures[i] = fmt.Errorf("%s, %s: %w\n%s", arms[i].name, what, err, arms[i].tail())
				}
			})
			if !b.telemetry {
				all.Wait()
			}
		}
		all.Wait()
		if err := errors.Join(failures...); err != nil {
			return nil, err
		}
		if round > 0 {
			for i, f := range measured {
				samples[i] = append(samples[i], f)
			}
		}
	}
	return samples, nil
}

// tail is the end of the server's log.
func (a *arm) tail() string {
	if a.process == nil {
		return ""
	}
	return a.process.Tail()
}

// run measures one server for one duration.
func (a *arm) run(ctx context.Context, s setting, shape load.Shape, duration time.Duration) (figures, error) {
	return a.account(ctx, s.Mode, func() (load.Result, error) {
		if s.Mode == "direct" {
			r, err := direct.Run(ctx, direct.Options{Address: a.grpc, Shape: shape, Streams: s.Connections, Duration: duration})
			return load.Result{Requests: r.Exchanges, Elapsed: r.Elapsed}, err
		}
		return load.Run(ctx, a.load(s, shape, duration))
	})
}

// load is the traffic of a run through Envoy.
func (a *arm) load(s setting, shape load.Shape, duration time.Duration) load.Options {
	return load.Options{
		Address: a.envoy.Address, Shape: shape, HTTP2: s.Protocol == "h2", Connections: s.Connections, Duration: duration,
		Headers: a.headers, Sheds: a.sheds,
	}
}

// account measures what a run takes.
func (a *arm) account(ctx context.Context, mode string, run func() (load.Result, error)) (figures, error) {
	before, err := a.count(ctx)
	if err != nil {
		return figures{}, err
	}
	stopScraping := func() error { return nil }
	if a.scraped {
		stopScraping = a.scrape(ctx)
	}
	r, err := run()
	if err := errors.Join(err, stopScraping()); err != nil {
		return figures{}, err
	}
	time.Sleep(a.settle)
	after, err := a.count(ctx)
	if err != nil {
		return figures{}, err
	}
	requests := float64(r.Requests)
	f := figures{
		PerSecond: requests / r.Elapsed.Seconds(), P50Micros: micros(r.P50), P99Micros: micros(r.P99), Refused: float64(r.Refused) / requests,
		CPUMicros: micros(after.server-before.server) / requests, StoreMicros: micros(after.store-before.store) / requests,
		Allocs:     float64(after.allocated.Objects-before.allocated.Objects) / requests,
		AllocBytes: float64(after.allocated.Bytes-before.allocated.Bytes) / requests,
		Spans:      float64(after.spans-before.spans) / requests,
	}
	if mode == "envoy" {
		f.EnvoyMicros = micros(after.envoy-before.envoy) / requests
	}
	return f, nil
}

// counters are those of a server, its Envoy and its store.
type counters struct {
	server, envoy, store time.Duration
	spans                int64
	allocated            usage.Allocations
}

func (a *arm) count(ctx context.Context) (c counters, err error) {
	for _, p := range []struct {
		runs bool
		pid  func() int
		to   *time.Duration
	}{
		{a.process != nil, func() int { return a.process.PID() }, &c.server},
		{a.envoy != nil, func() int { return a.envoy.PID() }, &c.envoy},
		{a.store != nil, func() int { return a.store.PID() }, &c.store},
	} {
		if !p.runs {
			continue
		}
		if *p.to, err = usage.CPU(p.pid()); err != nil {
			return c, err
		}
	}
	if a.spans != nil {
		c.spans = a.spans.Load()
	}
	if a.process != nil && a.name != rateLimiter { // whose heap profile has no counters at that path
		c.allocated, err = usage.Allocated(ctx, a.admin)
	}
	return c, err
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
