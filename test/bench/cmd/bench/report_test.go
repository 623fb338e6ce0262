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
	got := newRow(eight, "GET", "headgate", gate, noop)
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
	r := report{Machine: "here", Rounds: 1, Rows: []row{newRow(replayed, "GET", "no-op", samples, samples)}}
	var table strings.Builder
	r.print(&table)
	for _, want := range []string{"here", "direct, 8 at a time", "GET", "1000", "1.00 (1.00–1.00)", "100.5", "21.0"} {
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

// TestWitnessIsADifference: what the witness costs is told as the median of the differences within rounds.
func TestWitnessIsADifference(t *testing.T) {
	at := func(server, envoy float64) figures { return figures{CPUMicros: server, EnvoyMicros: envoy} }
	r := report{Rows: []row{
		{setting: eight, Shape: "GET", Server: withoutWitness, Samples: []figures{at(100, 200), at(500, 900), at(100, 200)}},
		{setting: eight, Shape: "GET", Server: withWitness, Samples: []figures{at(350, 320), at(740, 1030), at(5000, 310)}},
		{setting: replayed, Shape: "GET", Server: withoutWitness, Samples: []figures{at(1, 0)}},
	}}
	var text strings.Builder
	r.witness(&text)
	if want := "witness, h1, tcp, 8 connections, GET: +250 µs of the server and +120 µs of Envoy for a response\n"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
}
