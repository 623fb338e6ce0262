package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is what bench.json holds.
type report struct {
	Machine   string    `json:"machine"`
	Rounds    int       `json:"rounds"`
	Duration  string    `json:"duration"` // of one round of one kind of request and server
	Baseline  string    `json:"baseline"` // the server that ratios are to
	Rows      []row     `json:"rows"`
	Latencies []latency `json:"latencies,omitempty"`
	Held      []held    `json:"held,omitempty"`
	Decisions decisions `json:"decisions"`
	Goals     []outcome `json:"goals,omitempty"`
}

// row is one server under one kind of request.
type row struct {
	setting
	Shape   string    `json:"shape"`
	Server  string    `json:"server"`
	Median  figures   `json:"median"`
	Rate    ratio     `json:"rateRatio"` // requests per second, to the baseline's
	CPU     ratio     `json:"cpuRatio"`  // processor time per request, to the baseline's
	Samples []figures `json:"samples"`
}

// ratio is the median over the rounds of the ratio within a round, and its range.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// newRow compares the rounds of a server with those of the baseline, pair by pair.
func newRow(s setting, shape, server string, samples, baseline []figures) row {
	r := row{setting: s, Shape: shape, Server: server, Samples: samples, Median: medians(samples)}
	r.Rate = newRatio(samples, baseline, func(f figures) float64 { return f.PerSecond })
	r.CPU = newRatio(samples, baseline, func(f figures) float64 { return f.CPUMicros })
	return r
}

// medians of each figure.
func medians(samples []figures) figures {
	field := func(of func(figures) float64) float64 { return median(collect(samples, of)) }
	return figures{
		PerSecond:   field(func(f figures) float64 { return f.PerSecond }),
		CPUMicros:   field(func(f figures) float64 { return f.CPUMicros }),
		EnvoyMicros: field(func(f figures) float64 { return f.EnvoyMicros }),
		StoreMicros: field(func(f figures) float64 { return f.StoreMicros }),
		P50Micros:   field(func(f figures) float64 { return f.P50Micros }),
		P99Micros:   field(func(f figures) float64 { return f.P99Micros }),
		Refused:     field(func(f figures) float64 { return f.Refused }),
		Allocs:      field(func(f figures) float64 { return f.Allocs }),
		AllocBytes:  field(func(f figures) float64 { return f.AllocBytes }),
		Spans:       field(func(f figures) float64 { return f.Spans }),
	}
}

func newRatio(samples, baseline []figures, of func(figures) float64) ratio {
	var all []float64
	for i := range samples {
		if to := of(baseline[i]); to > 0 {
			all = append(all, of(samples[i])/to)
		}
	}
	return rangeOf(all)
}

// rangeOf is the median of all and how far they go; zero of nothing.
func rangeOf(all []float64) ratio {
	if len(all) == 0 {
		return ratio{}
	}
	return ratio{Median: median(all), Min: slices.Min(all), Max: slices.Max(all)}
}

func collect(samples []figures, of func(figures) float64) []float64 {
	all := make([]float64, len(samples))
	for i, f := range samples {
		all[i] = of(f)
	}
	return all
}

// median is the lower one when there are two; 0 of nothing.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)/2]
}

// print writes the figures as tables for a terminal.
func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "%s; medians of %d rounds of %s; ratios to %s (least to largest round)\n\n", r.Machine, r.Rounds, r.Duration, r.Baseline)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "setting\trequest\tserver\trequests/s\tratio\tserver µs\tratio\tEnvoy µs\tRedis µs\tp50 µs\tp99 µs\trefused\tallocs\talloc B\tspans")
	for _, row := range r.Rows {
		m := row.Median
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.setting, row.Shape, row.Server, m.PerSecond, row.Rate,
			orDash(m.CPUMicros, 1), row.CPU, orDash(m.EnvoyMicros, 0), orDash(m.StoreMicros, 0), orDash(m.P50Micros, 0), orDash(m.P99Micros, 0),
			orDash(m.Refused, 3), orDash(m.Allocs, 1), orDash(m.AllocBytes, 0), orDash(m.Spans, 2))
	}
	for _, l := range r.Latencies {
		fmt.Fprintf(t, "open loop, %.0f %% of capacity\t%s\t%s\t%.0f\t\t%s\t\t%s\t%s\t%.0f\t%.0f\t%s\n", 100*l.Share, l.Shape, l.Server, l.Median.PerSecond,
			orDash(l.Median.CPUMicros, 1), orDash(l.Median.EnvoyMicros, 0), orDash(l.Median.StoreMicros, 0), l.Median.P50Micros, l.Median.P99Micros, orDash(l.Median.Refused, 3))
	}
	t.Flush()
	for _, h := range r.Held {
		fmt.Fprintf(w, "%s: %.1f KiB for each of %d held streams\n", h.Server, h.Resident/1024, h.Streams)
	}
	r.witness(w)
}

// witness says what the witness costs for a response: the median over the rounds of the difference within a round.
func (r report) witness(w io.Writer) {
	for _, with := range r.Rows {
		without := r.find(with.setting, with.Shape, withoutWitness)
		if with.Server != withWitness || without == nil {
			continue
		}
		difference := func(of func(figures) float64) float64 {
			var all []float64
			for i := range with.Samples {
				all = append(all, of(with.Samples[i])-of(without.Samples[i]))
			}
			return median(all)
		}
		fmt.Fprintf(w, "witness, %s, %s: %+.0f µs of the server and %+.0f µs of Envoy for a response\n", with.setting, with.Shape,
			difference(func(f figures) float64 { return f.CPUMicros }), difference(func(f figures) float64 { return f.EnvoyMicros }))
	}
}

// find returns a row, nil where it was not measured.
func (r report) find(s setting, shape, server string) *row {
	for i := range r.Rows {
		if found := &r.Rows[i]; found.setting == s && found.Shape == shape && found.Server == server {
			return found
		}
	}
	return nil
}

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Min, r.Max) }

func orDash(v float64, digits int) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, v)
}

// write puts the report into a file as JSON.
func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return writeFile(path, append(text, '\n'))
}

func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}

// machine says what the figures were measured on.
func machine() string {
	model := "unknown processor"
	text, _ := os.ReadFile("/proc/cpuinfo") // only for the heading
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%s/%s, %d × %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), model, runtime.Version())
}
