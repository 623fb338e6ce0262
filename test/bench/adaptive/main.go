package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func main() {
	testing.Init()
	rounds := flag.Int("rounds", 3, "measurements of each figure; the least is shown")
	length := flag.Duration("length", 300*time.Millisecond, "least length of a measurement")
	flag.Parse()
	if err := run(os.Stdout, *rounds, *length); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run prints the table.
func run(w io.Writer, rounds int, length time.Duration) error {
	if err := flag.Set("test.benchtime", length.String()); err != nil {
		return fmt.Errorf("set the length: %w", err)
	}
	fmt.Fprintf(w, "%-28s %-24s %10s %8s %8s\n", "", "", "ns/op", "allocs", "ratio")
	tables := []struct {
		name    string
		measure func(*testing.B, limiterCase)
		waits   bool
	}{
		{"admit + release", func(b *testing.B, c limiterCase) { admit(b, c, 1) }, false},
		{"admit + release, 8 at once", func(b *testing.B, c limiterCase) { admit(b, c, 8) }, false},
		{"hand-off, 8 at once", handOff, true},
	}
	for _, t := range tables {
		var ours float64
		for i, c := range limiters() {
			if t.waits && c.forgets {
				fmt.Fprintf(w, "%-28s %-24s %10s\n", t.name, c.name, "forgets")
				continue
			}
			best := least(rounds, func(b *testing.B) { t.measure(b, c) })
			if best.N == 0 {
				return fmt.Errorf("%s, %s: the measurement failed", t.name, c.name)
			}
			ns := float64(best.T.Nanoseconds()) / float64(best.N)
			if i == 0 {
				ours = ns
			}
			fmt.Fprintf(w, "%-28s %-24s %10.1f %8d %8.2f\n", t.name, c.name, ns, best.AllocsPerOp(), ns/ours)
		}
	}
	return lanes(w, rounds, length)
}

// least of some measurements: what the machine did besides only ever adds.
func least(rounds int, f func(*testing.B)) testing.BenchmarkResult {
	var best testing.BenchmarkResult
	for range rounds {
		r := testing.Benchmark(f)
		if r.N > 0 && (best.N == 0 || r.NsPerOp() < best.NsPerOp()) {
			best = r
		}
	}
	return best
}

var picked = regexp.MustCompile(`^BenchmarkPickEnqueue/(\d+)\S*\s+\d+\s+([\d.]+) ns/op.*\s(\d+) allocs/op`)

// lanes adds what picking the next waiter and queueing another costs at so many lanes. That is inside package adaptive, where
// its own benchmark measures it.
func lanes(w io.Writer, rounds int, length time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/headgate/headgate").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkPickEnqueue$", "-benchmem",
		"-count", strconv.Itoa(rounds), "-benchtime", length.String(), "./pkg/adaptive")
	cmd.Dir = strings.TrimSpace(string(dir))
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("measure the lanes: %w\n%s", err, out)
	}
	var order []string
	best, allocs := map[string]float64{}, map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		m := picked.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		ns, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return fmt.Errorf("read %q: %w", s.Text(), err)
		}
		if _, seen := best[m[1]]; !seen {
			order = append(order, m[1])
			best[m[1]] = ns
		}
		best[m[1]], allocs[m[1]] = min(best[m[1]], ns), m[3]
	}
	for _, n := range order {
		fmt.Fprintf(w, "%-28s %-24s %10.1f %8s %8.2f\n", "pick + enqueue", n+" lanes", best[n], allocs[n], best[n]/best[order[0]])
	}
	return nil
}
