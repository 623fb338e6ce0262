package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options describe one run.
type Options struct {
	Address     string // host:port of Envoy
	Shape       Shape
	HTTP2       bool          // without TLS; otherwise HTTP/1.1
	Connections int           // each has one request under way at any time
	Duration    time.Duration // no request begins later
	Headers     [][]Header    // on top of the shape's: of the first connection, of the second, …, and from the start again
	Sheds       bool          // 503 is counted instead of being an error: a limiter under measurement refuses some
}

// Header is a request header.
type Header struct{ Name, Value string }

// Result is what a run measured.
type Result struct {
	Requests int // answered, refusals among them
	Refused  int
	Elapsed  time.Duration
	P50, P99 time.Duration // of a request, send to end of the response
}

// errStatus is returned for an answer other than 200: figures of refused requests mean nothing.
var errStatus = errors.New("unexpected status")

// Run sends requests as fast as they are answered. Any answer but 200 is an error.
func Run(ctx context.Context, o Options) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tallies := make([]tally, o.Connections)
	begin := time.Now()
	var all sync.WaitGroup
	for i := range o.Connections {
		all.Go(func() {
			c := o.caller(i)
			defer c.close()
			t := &tallies[i]
			for t.err == nil && time.Since(begin) < o.Duration {
				t.add(ctx, c, time.Now(), o.Sheds)
			}
			if t.err != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return o.sum(tallies, time.Since(begin))
}

// tally is what one connection did.
type tally struct {
	latencies []time.Duration
	refused   int
	err       error
}

// add makes one request. Its latency counts from begin.
func (t *tally) add(ctx context.Context, c caller, begin time.Time, sheds bool) {
	status, body, err := c.call(ctx)
	switch {
	case err != nil:
		t.err = err
		return
	case status == http.StatusServiceUnavailable && sheds:
		t.refused++
	case status != http.StatusOK:
		t.err = fmt.Errorf("%w %d: %s", errStatus, status, body)
		return
	}
	t.latencies = append(t.latencies, time.Since(begin))
}

// sum makes one result of what the connections did.
func (o Options) sum(tallies []tally, elapsed time.Duration) (Result, error) {
	r := Result{Elapsed: elapsed}
	var sorted []time.Duration
	var failures []error
	for _, t := range tallies {
		sorted = append(sorted, t.latencies...)
		r.Refused += t.refused
		if t.err != nil && !errors.Is(t.err, context.Canceled) {
			failures = append(failures, t.err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Shape.Name, err)
	}
	if len(sorted) == 0 {
		return Result{}, fmt.Errorf("load %s: no request was answered", o.Shape.Name)
	}
	slices.Sort(sorted)
	r.Requests, r.P50, r.P99 = len(sorted), sorted[len(sorted)/2], sorted[len(sorted)*99/100]
	return r, nil
}
