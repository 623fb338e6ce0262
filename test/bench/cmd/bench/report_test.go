package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRatiosAreTakenWithinRounds(t *testing.T) {
	t.Parallel()
	noop := []figures{{PerSecond: 100, CPUMicros: 10}, {PerSecond: 200, CPUMicros: 20}, {PerSecond: 50, CPUMicros: 0}}
	gate := []figures{{PerSecond: 90, CPUMicros: 12}, {PerSecond: 100, CPUMicros: 30}, {PerSecond: 60, CPUMicros: 11}}
	got := newRow("envoy", "GET", "headgate", gate, noop)
	if want := (ratio{Median: 0.9, Min: 0.5, Max: 1.2}); got.Rate != want {
		t.Errorf("rate: got %+v, want %+v", got.Rate, want)
	}
	if want := (ratio{Median: 1.2, Min: 1.2, Max: 1.5}); got.CPU != want {
		t.Errorf("processor time, without the round that measured nothing: got %+v, want %+v", got.CPU, want)
	}
	if got.Median.PerSecond != 90 || got.Median.CPUMicros != 12 {
		t.Errorf("medians: got %+v, want 90 a second and 12 µs", got.Median)
	}
}

func TestReportIsPrintedAndWritten(t *testing.T) {
	t.Parallel()
	samples := []figures{{PerSecond: 1000, CPUMicros: 100.5, Allocs: 21}}
	r := report{Machine: "here", Rounds: 1, Rows: []row{newRow("direct", "GET", "no-op", samples, samples)}}
	var table strings.Builder
	r.print(&table)
	for _, want := range []string{"here", "direct", "GET", "1000", "1.00 (1.00–1.00)", "100.5", "21.0"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	path := filepath.Join(t.TempDir(), "build", "bench.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read report
	if err := json.Unmarshal(text, &read); err != nil || len(read.Rows) != 1 || read.Rows[0].CPU.Median != 1 {
		t.Errorf("read back %+v, error %v, want one row with ratio 1", read, err)
	}
}
