package adaptive

// sample pools latencies over the costs they were expected from.
type sample struct {
	n                 int
	latency, expected float64 // in nanoseconds and cost
	// Sums of squares and products of the two, for the scatter.
	latency2, product, expected2 float64
}

func (s *sample) add(latency, expected float64) {
	s.n++
	s.latency += latency
	s.expected += expected
	s.latency2 += latency * latency
	s.product += latency * expected
	s.expected2 += expected * expected
}

// mean latency per unit of expected cost; 0 without samples.
func (s *sample) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.latency / s.expected
}

// scatter is the squared coefficient of variation of one sample about the mean; false with fewer than two.
func (s *sample) scatter() (float64, bool) {
	if s.n < 2 || s.latency == 0 {
		return 0, false
	}
	n, m := float64(s.n), s.mean()
	residual := max(0, s.latency2-2*m*s.product+m*m*s.expected2)
	return residual / (n - 1) / (s.latency / n * s.latency / n), true
}
