package adaptive

// sample pools latencies over the costs they were expected from.
type sample struct {
	n                 int
	latency, expected float64 // in nanoseconds and cost
}

func (s *sample) add(latency, expected float64) {
	s.n++
	s.latency += latency
	s.expected += expected
}

// mean latency per unit of expected cost; 0 without samples.
func (s *sample) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.latency / s.expected
}
