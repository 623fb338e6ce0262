package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/test/bench/load"
)

// telemetryArms are the sidecars that -telemetry compares: the first is what the others' ratios are to. Both ways to
// trace go with metrics that are scraped each second.
var telemetryArms = []struct {
	name   string
	sample string // OTEL_TRACES_SAMPLER; empty is its default
	on     bool
	most   float64 // ratio of processor time that is the goal
}{
	{"off", "", false, 0},
	{"default sampling", "", true, 1.05},
	{"all sampled", "always_on", true, 1.15},
}

// shadowed is the default.
const shadowed = "clusters:\n  \"*\": {lanes: {mode: shadow}}\n"

// compareTelemetry measures them all at the same time.
func (b *bench) compareTelemetry(ctx context.Context, r *report) error {
	if err := b.startTelemetry(ctx); err != nil {
		return err
	}
	r.Baseline = b.arms[0].name
	for _, mode := range []string{"envoy", "direct"} {
		s, shapes := eight, b.selected(append(load.Shapes(), load.Long()[1:]...))
		if mode == "direct" {
			s, shapes = replayed, b.selected(load.Shapes())
		}
		if !b.measures(mode) {
			continue
		}
		rows, err := b.measure(ctx, s, shapes)
		if err != nil {
			return err
		}
		r.Rows = append(r.Rows, rows...)
	}
	r.print(os.Stdout)
	r.goals(os.Stdout)
	return r.write(b.out)
}

// scrapeEvery is how often metrics are read of an arm that is measured, the first time after half of it.
const scrapeEvery = time.Second

// exportEvery is how soon spans are exported, so that those of one round are exported, and paid for, in that round. The
// default is 5 s; much sooner would measure exports that nobody makes.
const exportEvery = time.Second

// startTelemetry starts a sidecar for each way to observe it, each with somebody of its own to send spans to.
func (b *bench) startTelemetry(ctx context.Context) error {
	if b.binary == "" {
		binary, err := b.build(ctx, b.repository, "./cmd/extproc")
		if err != nil {
			return err
		}
		b.binary = binary
	}
	var err error
	if b.upstream, err = load.NewUpstream(); err != nil {
		return err
	}
	for _, t := range telemetryArms {
		environ := withoutTelemetry(os.Environ())
		var collector *collector
		if t.on {
			if collector, err = newCollector(); err != nil {
				return err
			}
			b.collectors = append(b.collectors, collector)
			environ = append(environ, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+collector.addr, "OTEL_METRICS_EXPORTER=none",
				"OTEL_TRACES_SAMPLER="+t.sample, fmt.Sprintf("OTEL_BSP_SCHEDULE_DELAY=%d", exportEvery.Milliseconds()))
		}
		err := b.startArm(ctx, server{name: t.name, clusters: shadowed, environ: environ, direct: true, command: func(_ *config.Config, file string) (string, []string) {
			return b.binary, []string{"serve", "--config", file}
		}}, "tcp")
		if err != nil {
			return err
		}
		a := b.arms[len(b.arms)-1]
		a.settle = exportEvery + 200*time.Millisecond
		if t.on {
			a.spans, a.scraped = &collector.spans, true
		}
	}
	return nil
}

func withoutTelemetry(environ []string) []string {
	var kept []string
	for _, variable := range environ {
		if !strings.HasPrefix(variable, "OTEL_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// goals says how far from the goals each kind of request is.
func (r report) goals(w io.Writer) {
	for _, t := range telemetryArms {
		for _, row := range r.Rows {
			if row.Server == t.name && t.most > 0 {
				fmt.Fprintf(w, "%s, %s, %s: %+.1f %% processor time per request, the goal is at most %+.0f %%\n",
					t.name, row.setting, row.Shape, 100*(row.CPU.Median-1), 100*(t.most-1))
			}
		}
	}
}

// scrape reads the arm's metrics each second until the returned function is called.
func (a *arm) scrape(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		next := time.NewTimer(scrapeEvery / 2)
		defer next.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-next.C:
				next.Reset(scrapeEvery)
			}
			if err := a.scrapeOnce(ctx); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

func (a *arm) scrapeOnce(ctx context.Context) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.admin+"/metrics", nil)
	if err != nil {
		return err
	}
	q.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5") // as Prometheus does
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return fmt.Errorf("scrape: %w", err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return fmt.Errorf("scrape: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("scrape: %s", answer.Status)
	}
	return nil
}

// collector takes spans by OTLP over HTTP and counts them.
type collector struct {
	addr   string
	server *http.Server
	spans  atomic.Int64
}

func newCollector() (*collector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a collector: %w", err)
	}
	c := &collector{addr: l.Addr().String()}
	c.server = &http.Server{ReadHeaderTimeout: readyWithin, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return // the sender is gone
		}
		c.spans.Add(countFields(body, 1, 2, 2)) // ResourceSpans, ScopeSpans, Span
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	go func() { _ = c.server.Serve(l) }() // ends with ErrServerClosed
	return c, nil
}

// countFields counts the messages at a path of field numbers in an encoded message: first, then those below.
func countFields(message []byte, first protowire.Number, below ...protowire.Number) (n int64) {
	for len(message) > 0 {
		field, kind, head := protowire.ConsumeTag(message)
		if head < 0 {
			return n
		}
		size := protowire.ConsumeFieldValue(field, kind, message[head:])
		if size < 0 {
			return n
		}
		if field == first && kind == protowire.BytesType {
			if value, _ := protowire.ConsumeBytes(message[head:]); len(below) > 0 {
				n += countFields(value, below[0], below[1:]...)
			} else {
				n++
			}
		}
		message = message[head+size:]
	}
	return n
}
