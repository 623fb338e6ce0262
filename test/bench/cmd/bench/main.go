// Command bench measures what Headgate costs next to an ext_proc server that does nothing: requests per second and
// processor time per request through a real Envoy, then the same exchanges replayed straight to the servers, with
// allocations. Both run side by side, in rounds that take turns, so that what disturbs the machine disturbs both.
//
// It prints one table and writes build/bench.json. With -telemetry it compares Headgate that is traced and scraped with
// Headgate that is not, all of them under load at the same time: the differences are too small for turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/test/bench/load"
)

// options are the command line.
type options struct {
	rounds      int
	connections int
	duration    time.Duration
	modes       string
	shapes      string
	binary      string
	out         string
	record      bool
	telemetry   bool

	repository, module string // directories
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	flag.IntVar(&o.connections, "connections", 8, "requests under way at any time")
	flag.DurationVar(&o.duration, "duration", 1500*time.Millisecond, "time per round, kind of request and server")
	flag.StringVar(&o.modes, "modes", "envoy,direct", "what to measure: envoy, direct or both")
	flag.StringVar(&o.shapes, "shapes", "", "only kinds of request whose names contain this")
	flag.StringVar(&o.binary, "headgate", "", "extproc binary to measure; empty builds it")
	flag.StringVar(&o.out, "out", "", "where to write the figures; empty is build/bench.json, or build/bench-telemetry.json, of the repository")
	flag.BoolVar(&o.record, "record", false, "record what Envoy sends for each kind of request instead of measuring")
	flag.BoolVar(&o.telemetry, "telemetry", false, "compare Headgate with traces and scraped metrics to itself without")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	module, err := stack.Root()
	if err != nil {
		return err
	}
	o.module, o.repository = module, filepath.Join(module, "..", "..")
	if o.out == "" {
		o.out = filepath.Join(o.repository, "build", "bench.json")
		if o.telemetry {
			o.out = filepath.Join(o.repository, "build", "bench-telemetry.json")
		}
	}
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir}
	defer b.stop()
	if o.record {
		return b.record(ctx)
	}
	start := b.start
	if o.telemetry {
		start = b.startTelemetry
	}
	if err := start(ctx); err != nil {
		return err
	}
	r := report{Rounds: o.rounds, Connections: o.connections, Duration: o.duration.String(), Machine: machine(), Baseline: b.arms[0].name}
	for _, mode := range strings.Split(o.modes, ",") {
		rows, err := b.measure(ctx, mode)
		if err != nil {
			return err
		}
		r.Rows = append(r.Rows, rows...)
	}
	r.print(os.Stdout)
	if o.telemetry {
		r.goals(os.Stdout)
	}
	r.witness(os.Stdout)
	return r.write(o.out)
}

// selected are the kinds of request the command line asks for, as far as the mode has them.
func (o options) selected(mode string) []load.Shape {
	var all []load.Shape
	shapes := load.Shapes()
	if mode == "envoy" {
		shapes = append(shapes, load.Streamed()...)
	}
	for _, s := range shapes {
		if strings.Contains(s.Name, o.shapes) {
			all = append(all, s)
		}
	}
	return all
}
