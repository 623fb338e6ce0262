package main

import (
	"runtime"
	"sync"
	"testing"
)

// admit measures requests that never wait, from so many goroutines at once.
func admit(b *testing.B, c limiterCase, goroutines int) {
	worker := c.worker(wide)
	b.ReportAllocs()
	spread(b, goroutines, worker)
}

// handOff measures requests that all have to wait for one another: eight goroutines share a limit of one.
func handOff(b *testing.B, c limiterCase) {
	worker := c.worker(1)
	b.ReportAllocs()
	spread(b, 8, func() func() error {
		do := worker()
		return func() error {
			err := do()
			runtime.Gosched() // or the one that runs would find the limiter free each time
			return err
		}
	})
}

// spread b.N operations over goroutines.
func spread(b *testing.B, goroutines int, worker func() func() error) {
	var wg sync.WaitGroup
	errs := make(chan error, goroutines)
	b.ResetTimer()
	for g := range goroutines {
		n := b.N / goroutines
		if g < b.N%goroutines {
			n++
		}
		do := worker()
		wg.Go(func() {
			for range n {
				if err := do(); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
}
