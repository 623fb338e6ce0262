package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Pace sends requests at a rate, whether or not those before them are answered: they are due at random times (a Poisson
// process), and a request's latency counts from when it was due. What waits behind a slow answer counts too, which a client that
// sends its next request after the answer would leave out (coordinated omission). At most o.Connections requests are under way;
// those that are due meanwhile wait, and their wait counts. Every seed gives the same times.
func Pace(ctx context.Context, o Options, rate float64, seed uint64) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	times := dueTimes(rate, o.Duration, seed)
	due := make(chan time.Time, len(times)) // never full: whoever sends requests late is late for its own
	tallies := make([]tally, o.Connections)
	begin := time.Now()
	var all sync.WaitGroup
	for i := range o.Connections {
		all.Go(func() {
			c := o.caller(i)
			defer c.close()
			t := &tallies[i]
			for at := range due {
				if t.add(ctx, c, at, o.Sheds); t.err != nil {
					cancel()
					return
				}
			}
		})
	}
	for _, after := range times {
		at := begin.Add(after)
		if wait(ctx, time.Until(at)) != nil {
			break
		}
		due <- at
	}
	close(due)
	all.Wait()
	return o.sum(tallies, time.Since(begin))
}

// dueTimes are when requests are due, from the begin.
func dueTimes(rate float64, duration time.Duration, seed uint64) []time.Duration {
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // no secret
	var times []time.Duration
	for at := time.Duration(0); at < duration; at += time.Duration(random.ExpFloat64() / rate * float64(time.Second)) {
		times = append(times, at)
	}
	return times
}

// wait waits for d, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
