//go:build endurance

package endurance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSoak: under a mixed load with reloads nothing grows: goroutines, descriptors, memory, Redis's keys.
func TestSoak(t *testing.T) {
	lasts := length(t, "SOAK", 30*time.Minute)
	r := begin(t, rigOptions{})
	l := newLoad(r.listen)
	warm := min(lasts/5, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), warm+lasts)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { l.drive(ctx, 40, connections+2) })
	all.Go(func() { // reloads
		for sleep(ctx, 20*time.Second) {
			_ = r.sidecar.Signal(syscall.SIGHUP)
		}
	})
	sleep(ctx, warm) // lanes, pools and idle connections come into being
	var times []float64
	var seen []vitals
	began := time.Now()
	for sleep(ctx, 2*time.Second) {
		v, err := r.vitals(ctx)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("read the vitals: %v", err)
			}
			break
		}
		times, seen = append(times, time.Since(began).Seconds()), append(seen, v)
	}
	all.Wait()
	left, err := r.idle(context.WithoutCancel(ctx))
	if err != nil || len(left) > 0 {
		t.Errorf("after the load there is still %v (%v), want nothing", left, err)
	}
	if faults := r.judge.verdict(); len(faults) > 0 {
		t.Errorf("the upstream found %v", faults)
	}

	fmt.Printf("\n%-14s %10s %22s %14s %10s  %s\n", "what", "mean", "slope an hour (95 %)", "sure growth", "allowed", "")
	seconds := lasts.Seconds()
	for _, row := range []struct {
		name    string
		of      func(vitals) float64
		allowed float64 // growth over the whole run that a leak must not be sure to exceed
	}{
		{"goroutines", func(v vitals) float64 { return v.Goroutines }, 10},
		{"descriptors", func(v vitals) float64 { return v.Descriptors }, 5},
		{"memory, MiB", func(v vitals) float64 { return v.MemoryMiB }, 5},
		{"heap, MiB", func(v vitals) float64 { return v.HeapMiB }, 5},
		{"Redis keys", func(v vitals) float64 { return v.Keys }, 2},
	} {
		values := make([]float64, len(seen))
		for i, v := range seen {
			values[i] = row.of(v)
		}
		f := fit(times, values)
		flat := f.flat(seconds, row.allowed) && f.mean > 0
		fmt.Printf("%-14s %10.1f %12.2f ± %-7.2f %14.2f %10.0f  %s\n", row.name, f.mean, f.slope*3600, f.half*3600, f.growth(seconds), row.allowed, map[bool]string{true: "flat", false: "GROWS"}[flat])
		if !flat {
			t.Errorf("%s: mean %.1f, grows by %.2f ± %.2f an hour, want no sure growth above %.0f in %v", row.name, f.mean, f.slope*3600, f.half*3600, row.allowed, lasts)
		}
	}
	l.print(fmt.Sprintf("%v of load, %d served by the upstream, %d fenced", lasts, r.judge.served.Load(), r.judge.fenced))
}

// print writes what became of the requests.
func (l *load) print(title string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rows []string
	for what, n := range l.counts {
		rows = append(rows, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(rows)
	fmt.Printf("%s; %s\n", title, strings.Join(rows, ", "))
}
