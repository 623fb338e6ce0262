package main

import (
	"fmt"
	"testing"
)

func BenchmarkAdmit(b *testing.B) {
	for _, c := range limiters() {
		for _, goroutines := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d", c.name, goroutines), func(b *testing.B) { admit(b, c, goroutines) })
		}
	}
}

func BenchmarkHandOff(b *testing.B) {
	for _, c := range limiters() {
		if !c.forgets {
			b.Run(c.name, func(b *testing.B) { handOff(b, c) })
		}
	}
}

// Each limiter admits, hands off and ends without an error: the benchmarks compare things that work.
func TestLimiters(t *testing.T) {
	t.Parallel()
	for _, c := range limiters() {
		for _, limit := range []int{1, wide} {
			do := c.worker(limit)()
			for range 100 {
				if err := do(); err != nil {
					t.Fatalf("%s at a limit of %d: %v", c.name, limit, err)
				}
			}
		}
	}
}
