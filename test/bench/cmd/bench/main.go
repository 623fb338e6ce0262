// Command bench measures what Headgate costs next to what else could stand in its place: Envoy alone, an ext_proc server that
// does nothing, envoyproxy/ratelimit, Envoy's own filters. It counts requests per second and the processor time of Envoy, server
// and Redis per request through a real Envoy; latencies at a rate that is kept whether or not answers come; the memory of held
// exchanges; and, without Envoy, recorded exchanges with their allocations. All run side by side, in rounds that take turns, so
// that what disturbs the machine disturbs all.
//
// It prints tables and goals and writes build/bench.json, build/bench.md and build/bench.svg. With -telemetry it compares Headgate
// that is traced and scraped with Headgate that is not, all of them under load at the same time: the differences are too small
// for turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/test/bench/load"
)

// options are the command line.
type options struct {
	rounds    int
	duration  time.Duration
	modes     string
	shapes    string
	servers   string
	settings  string
	full      bool
	streams   int
	binary    string
	out       string
	svgFile   string
	record    bool
	telemetry bool

	repository, module string // directories
	redis              string // the program
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	flag.DurationVar(&o.duration, "duration", 700*time.Millisecond, "time per round, kind of request and server")
	flag.StringVar(&o.modes, "modes", "held,direct,envoy,latency,decisions", "what to measure, separated by commas")
	flag.StringVar(&o.shapes, "shapes", "", "only kinds of request whose names contain one of these, separated by commas")
	flag.StringVar(&o.servers, "servers", "", "only these servers, separated by commas, besides the no-op")
	flag.StringVar(&o.settings, "settings", "", "how requests come, such as h1/tcp/8,h2/unix/64: protocol, socket between Envoy and server, connections; empty is h1/tcp/8, and 4 KiB at h1/tcp/64, h2/tcp/8 and h1/unix/8")
	flag.BoolVar(&o.full, "full", false, "measure every kind of request in every setting: h1 and h2, tcp and unix, 1, 8 and 64 connections (hours)")
	flag.IntVar(&o.streams, "held", 10_000, "exchanges to hold for their memory")
	flag.StringVar(&o.binary, "headgate", "", "extproc binary to measure; empty builds it")
	flag.StringVar(&o.out, "out", "", "where to write the figures; empty is build/bench.json, or build/bench-telemetry.json, of the repository")
	flag.StringVar(&o.svgFile, "svg", "", "where to write the picture; empty is beside the figures")
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
	name := "bench.json"
	if o.telemetry {
		name = "bench-telemetry.json"
	}
	if o.out == "" {
		o.out = filepath.Join(o.repository, "build", name)
	}
	if o.redis, err = o.tools().Redis(ctx); err != nil {
		return err
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
	r := report{Machine: machine(), Rounds: o.rounds, Duration: o.duration.String()}
	if o.telemetry {
		return b.compareTelemetry(ctx, &r)
	}
	return b.compare(ctx, &r)
}

// compare measures what the command line asks for.
func (b *bench) compare(ctx context.Context, r *report) error {
	plans, err := b.plans()
	if err != nil {
		return err
	}
	for i, socket := range []string{"tcp", "unix"} {
		mine := slices.DeleteFunc(slices.Clone(plans), func(p plan) bool { return p.Socket != socket })
		if len(mine) == 0 && i > 0 {
			continue
		}
		if err := b.start(ctx, socket); err != nil {
			return err
		}
		r.Baseline = b.arms[0].name
		if err := b.compareOver(ctx, r, mine, i == 0); err != nil {
			return err
		}
		b.stopArms()
	}
	if b.measures("decisions") {
		if r.Decisions, err = b.decide(); err != nil {
			return err
		}
	}
	r.Goals = r.outcomes()
	r.print(os.Stdout)
	printGoals(os.Stdout, r.Goals)
	return r.writeAll(b.out, b.svgFile)
}

// compareOver measures over one kind of socket; what has no Envoy in it only the first time.
func (b *bench) compareOver(ctx context.Context, r *report, plans []plan, first bool) (err error) {
	if first && b.measures("held") {
		if r.Held, err = b.hold(ctx, small()); err != nil {
			return err
		}
	}
	if first && b.measures("direct") {
		rows, err := b.measure(ctx, replayed, b.selected(load.Shapes()))
		if err != nil {
			return err
		}
		r.Rows = append(r.Rows, rows...)
	}
	for _, p := range plans {
		rows, err := b.measure(ctx, p.setting, p.shapes)
		if err != nil {
			return err
		}
		r.Rows = append(r.Rows, rows...)
	}
	if first && b.measures("latency") {
		if r.Latencies, err = b.latencies(ctx, small()); err != nil {
			return err
		}
	}
	return nil
}

// measures reports whether the command line asks for a mode. Latencies are measured through Envoy.
func (o options) measures(mode string) bool {
	asked := strings.Split(o.modes, ",")
	return slices.Contains(asked, mode) || mode == "envoy" && slices.Contains(asked, "latency")
}

// selected are the kinds of request the command line asks for.
func (o options) selected(shapes []load.Shape) []load.Shape {
	var all []load.Shape
	for _, s := range shapes {
		for part := range strings.SplitSeq(o.shapes, ",") {
			if strings.Contains(s.Name, part) {
				all = append(all, s)
				break
			}
		}
	}
	return all
}

// small is the kind of request that most goals are about.
func small() load.Shape { return load.Shapes()[2] }

// writeAll writes the figures, and beside them a page and a picture.
func (r report) writeAll(out, picture string) error {
	if err := r.write(out); err != nil {
		return err
	}
	base := strings.TrimSuffix(out, ".json")
	if err := writeFile(base+".md", []byte(r.markdown())); err != nil {
		return err
	}
	if picture == "" {
		picture = base + ".svg"
	}
	if drawn := r.svg(eight, small().Name); drawn != "" {
		return writeFile(picture, []byte(drawn))
	}
	return nil
}
