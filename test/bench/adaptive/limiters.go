package main

import (
	"context"
	"strconv"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/platinummonkey/go-concurrency-limits/limit"
	"github.com/platinummonkey/go-concurrency-limits/limiter"
	"github.com/platinummonkey/go-concurrency-limits/strategy"
	"golang.org/x/sync/semaphore"

	"github.com/headgate/headgate/pkg/adaptive"
)

// wide is a limit that admission alone never reaches.
const wide = 1000

// cost of the requests at the lanes.
const cost = 5

// limiterCase is one limiter at a limit of so many requests.
type limiterCase struct {
	name string
	// worker makes what one goroutine does: a request that is admitted, waiting for it if it must, sampled and released.
	worker func(limit int) func() func() error
	// forgets says that waiting cannot be measured: a release between a failed attempt and its queueing wakes nobody, so that
	// at a limit of one all end up waiting for their time-out.
	forgets bool
}

// names of tenants, made ahead: a name costs nothing at the lanes.
func names(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = "lane_" + strconv.Itoa(i)
	}
	return s
}

func settings(limit int) adaptive.Settings {
	s := adaptive.DefaultSettings()
	s.Mode, s.VirtualLanes = adaptive.Enforce, true
	s.MinLimit, s.InitialLimit, s.MaxLimit = limit, limit, limit
	s.MaxWait = time.Hour
	return s
}

// limiters, each with an adapting limit that stays where it is: what adapting costs is measured, what it decides is not.
func limiters() []limiterCase {
	return []limiterCase{
		{name: "headgate", worker: headgate},
		{name: "failsafe-go adaptive", worker: failsafe},
		{name: "go-concurrency-limits", worker: gradient, forgets: true},
		{name: "x/sync semaphore", worker: weighted},
	}
}

func headgate(requests int) func() func() error {
	c, err := adaptive.New(settings(requests * cost))
	if err != nil {
		return failing(err)
	}
	tenants := names(64)
	return func() func() error {
		p, i := new(adaptive.Permit), 0
		return func() error {
			i++
			if c.Acquire(p, adaptive.Request{Lane: tenants[i%len(tenants)], Cost: cost, Forward: true}) == adaptive.Waiting {
				<-p.Ready()
			}
			p.Done(adaptive.OK)
			return nil
		}
	}
}

func failsafe(requests int) func() func() error {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(uint(requests), uint(requests), uint(requests)).Build()
	return func() func() error {
		return func() error {
			permit, err := l.AcquirePermit(context.Background())
			if err != nil {
				return err
			}
			permit.Record()
			return nil
		}
	}
}

func gradient(requests int) func() func() error {
	adapting, err := limit.NewGradient2Limit("bench", requests, requests, requests, nil, 0.2, 600, nil, nil)
	if err != nil {
		return failing(err)
	}
	inner, err := limiter.NewDefaultLimiter(adapting, 1e9, 1e9, 1, 10, strategy.NewSimpleStrategy(requests), nil, nil)
	if err != nil {
		return failing(err)
	}
	fifo := limiter.NewFifoBlockingLimiter(inner, 10_000, time.Hour)
	return func() func() error {
		return func() error {
			if l, ok := fifo.Acquire(context.Background()); ok {
				l.OnSuccess()
			}
			return nil
		}
	}
}

func weighted(requests int) func() func() error {
	s := semaphore.NewWeighted(int64(requests) * cost)
	return func() func() error {
		return func() error {
			if err := s.Acquire(context.Background(), cost); err != nil {
				return err
			}
			s.Release(cost)
			return nil
		}
	}
}

func failing(err error) func() func() error {
	return func() func() error { return func() error { return err } }
}
