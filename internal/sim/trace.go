package sim

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the traces
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

//go:embed data/conv.csv.gz
var convCSV []byte

//go:embed data/code.csv.gz
var codeCSV []byte

// Trace is one hour of a public inference trace; see data/README.md for its licence.
type Trace struct {
	sizes []Size
	gaps  []time.Duration
	mean  time.Duration // mean gap
}

// Conversations is the nearly Poisson trace: mean prompt 1155 tokens, mean answer 211.
func Conversations() (*Trace, error) { return readTrace(convCSV) }

// Code is the bursty trace: mean prompt 2048 tokens, mean answer 28.
func Code() (*Trace, error) { return readTrace(codeCSV) }

func readTrace(packed []byte) (*Trace, error) {
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	rows, err := csv.NewReader(zr).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	t := &Trace{}
	var last time.Time
	for i, row := range rows[1:] {
		at, errAt := time.Parse("2006-01-02 15:04:05.0000000", row[0])
		context, errContext := strconv.ParseInt(row[1], 10, 64)
		generated, errGenerated := strconv.ParseInt(row[2], 10, 64)
		if errAt != nil || errContext != nil || errGenerated != nil {
			return nil, fmt.Errorf("trace row %d: %v", i+1, row)
		}
		t.sizes = append(t.sizes, tokenSize(context, generated))
		if i > 0 {
			t.gaps = append(t.gaps, at.Sub(last))
			t.mean += at.Sub(last)
		}
		last = at
	}
	t.mean /= time.Duration(len(t.gaps))
	return t, nil
}

// Sizes drawn from the trace, each as likely as the other.
func (t *Trace) Sizes() Sizes {
	return func(r *rand.Rand) Size { return t.sizes[r.IntN(len(t.sizes))] }
}

// Replay the trace's arrivals from a random place, stretched to the wanted rate: bursts keep their shape.
func (t *Trace) Replay() Gaps {
	next := -1
	return func(r *rand.Rand, rate float64) time.Duration {
		if next < 0 {
			next = r.IntN(len(t.gaps))
		}
		gap := float64(t.gaps[next]) / float64(t.mean) / rate * float64(time.Second)
		next = (next + 1) % len(t.gaps)
		return time.Duration(gap)
	}
}
