package main

import (
	"runtime/debug"
	"testing"
)

func TestGCPercent(t *testing.T) {
	const start = 70
	before := debug.SetGCPercent(start)
	defer debug.SetGCPercent(before)
	for _, c := range []struct {
		gogc string
		want int
	}{{"150", start}, {"off", start}, {"", gcPercent}} { // the runtime has read GOGC long before
		tuneGC(func(string) string { return c.gogc })
		if got := debug.SetGCPercent(start); got != c.want {
			t.Errorf("GOGC=%q: %d %%, want %d %%", c.gogc, got, c.want)
		}
	}
}
