package extproc

import (
	"testing"
	"time"
)

// TestHeaderTiming: headers that come at once while costs or load differ are found out, and nothing else is.
func TestHeaderTiming(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, test := range []struct {
		name   string
		sample func(i int) headerSample
		total  time.Duration
		want   bool
	}{
		{"at once, costs differ", func(i int) headerSample { return headerSample{ms(2 + i%9), 4 + 16*(i%3), 1} }, time.Second, true},
		{"at once, load differs", func(i int) headerSample { return headerSample{ms(2), 5, 1 + i%40} }, time.Second, true},
		{"at once from far away", func(i int) headerSample { return headerSample{ms(150 + i%20), 5, 1 + i%40} }, time.Second, true},
		{"at once but for one in twenty", func(i int) headerSample { return headerSample{ms(2 + 900*(i%20/19)), 5, 1 + i%40} }, 2 * time.Second, true},
		{"the same request, one at a time", func(int) headerSample { return headerSample{ms(11), 5, 1} }, time.Second, false},
		{"a prompt takes time", func(i int) headerSample { return headerSample{ms(20 + 16*(i%3)), 4 + 16*(i%3), 1} }, time.Second, false},
		{"others take time", func(i int) headerSample { return headerSample{ms(20 + 5*(i%40)), 5, 1 + i%40} }, time.Second, false},
		{"the whole answer comes with its headers", func(i int) headerSample { return headerSample{ms(2), 5, 1 + i%40} }, ms(3), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var p headerTiming
			changes := 0
			for i := range 10 * headersKept {
				if p.add(test.sample(i), test.total) {
					changes++
				}
			}
			if got := p.atOnce.Load(); got != test.want || changes > 1 {
				t.Errorf("headers at once: %v after %d changes, want %v after one at most", got, changes, test.want)
			}
		})
	}
	t.Run("until they do not", func(t *testing.T) {
		var p headerTiming
		for i := range headersKept {
			p.add(headerSample{ms(2), 5, 1 + i%40}, time.Second)
		}
		if !p.atOnce.Load() {
			t.Fatalf("headers at once: false after %d such, want true", headersKept)
		}
		for i := range headersKept {
			p.add(headerSample{ms(5 * (i % 40)), 5, 1 + i%40}, 2*time.Second)
		}
		if p.atOnce.Load() {
			t.Errorf("headers at once: true after %d that take what load makes them take, want false", headersKept)
		}
	})
}

// TestHeaderTimingAllocatesNothing: it is on every response's path.
func TestHeaderTimingAllocatesNothing(t *testing.T) {
	var p headerTiming
	i := 0
	if n := testing.AllocsPerRun(1000, func() { i++; p.add(headerSample{time.Millisecond, i % 9, i % 7}, time.Second) }); n != 0 {
		t.Errorf("%v allocations a response, want 0", n)
	}
}
