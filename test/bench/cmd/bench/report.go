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
	Machine     string `json:"machine"`
	Rounds      int    `json:"rounds"`
	Connections int    `json:"connections"`
	Duration    string `json:"duration"` // of one round of one kind of request and server
	Baseline    string `json:"baseline"` // the server that ratios are to
	Rows        []row  `json:"rows"`
}

// row is one server under one kind of request.
type row struct {
	Mode    string    `json:"mode"`
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
func newRow(mode, shape, server string, samples, baseline []figures) row {
	r := row{Mode: mode, Shape: shape, Server: server, Samples: samples}
	field := func(of func(figures) float64) float64 { return median(collect(samples, of)) }
	r.Median = figures{
		PerSecond:   field(func(f figures) float64 { return f.PerSecond }),
		CPUMicros:   field(func(f figures) float64 { return f.CPUMicros }),
		EnvoyMicros: field(func(f figures) float64 { return f.EnvoyMicros }),
		P50Micros:   field(func(f figures) float64 { return f.P50Micros }),
		P99Micros:   field(func(f figures) float64 { return f.P99Micros }),
		Allocs:      field(func(f figures) float64 { return f.Allocs }),
		AllocBytes:  field(func(f figures) float64 { return f.AllocBytes }),
		Spans:       field(func(f figures) float64 { return f.Spans }),
	}
	r.Rate = newRatio(samples, baseline, func(f figures) float64 { return f.PerSecond })
	r.CPU = newRatio(samples, baseline, func(f figures) float64 { return f.CPUMicros })
	return r
}

func newRatio(samples, baseline []figures, of func(figures) float64) ratio {
	var all []float64
	for i := range samples {
		if to := of(baseline[i]); to > 0 {
			all = append(all, of(samples[i])/to)
		}
	}
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

// print writes the table.
func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "%s; medians of %d rounds of %s, %d at a time; ratios to %s (least to largest round)\n\n",
		r.Machine, r.Rounds, r.Duration, r.Connections, r.Baseline)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "mode\trequest\tserver\trequests/s\tratio\tCPU µs\tratio\tEnvoy µs\tp50 µs\tp99 µs\tallocs\talloc B\tspans")
	for _, row := range r.Rows {
		m := row.Median
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%s\t%.1f\t%s\t%s\t%s\t%s\t%.1f\t%.0f\t%s\n", row.Mode, row.Shape, row.Server,
			m.PerSecond, row.Rate, m.CPUMicros, row.CPU, orDash(m.EnvoyMicros), orDash(m.P50Micros), orDash(m.P99Micros), m.Allocs, m.AllocBytes, share(m.Spans))
	}
	t.Flush()
}

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Min, r.Max) }

func orDash(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", v)
}

func share(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", v)
}

// write puts the report into a file as JSON.
func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
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
