package extproc

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// headerTiming finds out whether the response headers of a route cluster come at once, whatever a request costs and however
// many run beside it: then they say nothing about the first token, nor about load. Only responses that go on for a while after
// their headers are looked at; the headers of an answer in one piece come with its last byte.
type headerTiming struct {
	atOnce  atomic.Bool
	running atomic.Int32 // requests in flight

	mu     sync.Mutex
	recent [headersKept]headerSample
	seen   int
}

// headerSample is one response.
type headerSample struct {
	took   time.Duration // from forwarding to the headers
	cost   int
	beside int // requests in flight when it was admitted, itself included
}

const (
	// headersKept is how many responses are looked at, and judgedEvery after how many they are looked at again.
	headersKept = 64
	judgedEvery = 16
	// atOnceSpread is by how much the slowest tenth of headers may be slower than the quickest tenth. The time to a first
	// token, which prompts of different lengths are read in and others wait for, spreads more.
	atOnceSpread = 25 * time.Millisecond
	// variedFactor is by how much costs, or requests in flight, must differ for that to mean anything.
	variedFactor = 4
	// goesOn is for how much longer than its headers took a response must go on to be looked at.
	goesOn = 200 * time.Millisecond
)

// add takes in a response that has ended, and reports whether that changed the finding.
func (p *headerTiming) add(s headerSample, total time.Duration) (changed bool) {
	if total < s.took+goesOn {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent[p.seen%headersKept] = s
	p.seen++
	if p.seen < headersKept || p.seen%judgedEvery != 0 {
		return false
	}
	atOnce, known := judge(p.recent)
	return known && p.atOnce.Swap(atOnce) != atOnce
}

// judge looks at a full set of responses. Where headers hardly differ but neither did the requests, nothing is known.
func judge(recent [headersKept]headerSample) (atOnce, known bool) {
	low, high := tenths(&recent, func(s headerSample) int64 { return int64(s.took) })
	if time.Duration(high-low) > atOnceSpread {
		return false, true
	}
	cheap, dear := tenths(&recent, func(s headerSample) int64 { return int64(s.cost) })
	few, many := tenths(&recent, func(s headerSample) int64 { return int64(s.beside) })
	return true, dear >= variedFactor*cheap || many >= variedFactor*few
}

// tenths are the values that a tenth, and all but a tenth, of the responses do not exceed.
func tenths(recent *[headersKept]headerSample, value func(headerSample) int64) (low, high int64) {
	var values [headersKept]int64
	for i, s := range recent {
		values[i] = value(s)
	}
	slices.Sort(values[:])
	return values[len(values)/10], values[len(values)-1-len(values)/10]
}
