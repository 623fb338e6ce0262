package main

import (
	"fmt"
	"io"
)

// withoutWitness and withWitness are the arms whose difference is the witness.
const (
	withoutWitness = "headgate+lanes"
	withWitness    = "headgate+lanes+witness"
)

// witness says what the witness costs for a response: the median over the rounds of the difference within a round.
func (r report) witness(w io.Writer) {
	for _, without := range r.Rows {
		for _, with := range r.Rows {
			if without.Server != withoutWitness || with.Server != withWitness || with.Shape != without.Shape || with.Mode != without.Mode {
				continue
			}
			difference := func(of func(figures) float64) float64 {
				var all []float64
				for i := range with.Samples {
					all = append(all, of(with.Samples[i])-of(without.Samples[i]))
				}
				return median(all)
			}
			fmt.Fprintf(w, "witness, %s: %+.0f µs of the server and %+.0f µs of Envoy for a response\n", with.Shape,
				difference(func(f figures) float64 { return f.CPUMicros }), difference(func(f figures) float64 { return f.EnvoyMicros }))
		}
	}
}
