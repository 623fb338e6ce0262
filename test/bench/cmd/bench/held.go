package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/headgate/headgate/test/bench/direct"
	"github.com/headgate/headgate/test/bench/load"
	"github.com/headgate/headgate/test/bench/usage"
)

// held is the memory of exchanges that wait for their response.
type held struct {
	Server   string  `json:"server"`
	Streams  int     `json:"streams"`
	Resident float64 `json:"residentBytes"` // more than without them, for each
}

// hold measures every server that can be measured without Envoy, before anything else has made its memory grow.
func (b *bench) hold(ctx context.Context, shape load.Shape) ([]held, error) {
	var all []held
	for _, a := range b.armsOf("direct") {
		if b.streams == 0 || a.name == "no-op GOGC=400" || a.name == bytesOnly { // which holds nothing
			continue
		}
		fmt.Fprintf(os.Stderr, "\rholding %d streams of %s             ", b.streams, a.name)
		h, err := a.hold(ctx, shape, b.streams)
		if err != nil {
			return nil, fmt.Errorf("hold %d streams of %s: %w\n%s", b.streams, a.name, err, a.tail())
		}
		all = append(all, h)
	}
	fmt.Fprintln(os.Stderr)
	return all, nil
}

func (a *arm) hold(ctx context.Context, shape load.Shape, streams int) (held, error) {
	if _, err := direct.Run(ctx, direct.Options{Address: a.grpc, Shape: shape, Streams: 64, Duration: 200 * time.Millisecond}); err != nil {
		return held{}, err // the first exchanges pay for what all share
	}
	before, err := a.resident(ctx)
	if err != nil {
		return held{}, err
	}
	release, err := direct.Hold(ctx, direct.Options{Address: a.grpc, Shape: shape, Streams: streams})
	if err != nil {
		return held{}, err
	}
	defer release()
	time.Sleep(time.Second) // long enough for what ends a decision
	after, err := a.resident(ctx)
	if err != nil {
		return held{}, err
	}
	return held{Server: a.name, Streams: streams, Resident: float64(after-before) / float64(streams)}, nil
}

// resident is the server's memory after a collection.
func (a *arm) resident(ctx context.Context) (int64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.admin+"/debug/pprof/heap?gc=1", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	answer.Body.Close()
	return usage.Resident(a.process.PID())
}
