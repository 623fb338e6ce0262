package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options describe one run.
type Options struct {
	Address     string // host:port of Envoy
	Shape       Shape
	Connections int           // each has one request under way at any time
	Duration    time.Duration // no request begins later
}

// Result is what a run measured.
type Result struct {
	Requests int
	Elapsed  time.Duration
	P50, P99 time.Duration // of a request, send to end of the response
}

// errStatus is returned for an answer other than 200: figures of refused requests mean nothing.
var errStatus = errors.New("unexpected status")

// Run sends requests as fast as they are answered. Any answer but 200 is an error.
func Run(ctx context.Context, o Options) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := o.Shape.Request()
	latencies := make([][]time.Duration, o.Connections)
	failures := make([]error, o.Connections)
	begin := time.Now()
	var all sync.WaitGroup
	for i := range o.Connections {
		all.Go(func() {
			latencies[i], failures[i] = runConnection(ctx, o.Address, request, begin.Add(o.Duration))
			if failures[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	elapsed := time.Since(begin)
	sorted := slices.Concat(latencies...)
	if err := errors.Join(failures...); err != nil {
		return Result{}, fmt.Errorf("load %s: %w", o.Shape.Name, err)
	}
	if len(sorted) == 0 {
		return Result{}, fmt.Errorf("load %s: no request was answered", o.Shape.Name)
	}
	slices.Sort(sorted)
	return Result{Requests: len(sorted), Elapsed: elapsed, P50: sorted[len(sorted)/2], P99: sorted[len(sorted)*99/100]}, nil
}

// runConnection sends requests over one connection until the deadline.
func runConnection(ctx context.Context, address string, request []byte, until time.Time) ([]time.Duration, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	answers := bufio.NewReader(conn)
	var latencies []time.Duration
	for time.Now().Before(until) {
		begin := time.Now()
		if err := roundTrip(conn, answers, request); err != nil {
			return nil, err
		}
		latencies = append(latencies, time.Since(begin))
	}
	return latencies, nil
}

func roundTrip(conn net.Conn, answers *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 512)) // only for the message
		return fmt.Errorf("%w %d: %s", errStatus, response.StatusCode, bytes.TrimSpace(body))
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
