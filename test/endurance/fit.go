package endurance

import (
	"math"
	"slices"
)

// line is a least-squares fit of values over time.
type line struct {
	mean  float64
	slope float64 // a second
	half  float64 // half of the slope's 95 % confidence interval
}

// fit fits a line through values at times in seconds. The interval takes neighbouring values for dependent, as those of a
// garbage collector are: it is widened by their correlation (the effective number of values, n(1-r)/(1+r)).
func fit(times, values []float64) line {
	n := float64(len(values))
	if n < 3 {
		return line{half: math.Inf(1)}
	}
	var tm, vm float64
	for i, t := range times {
		tm += t / n
		vm += values[i] / n
	}
	var tt, tv float64
	for i, t := range times {
		tt += (t - tm) * (t - tm)
		tv += (t - tm) * (values[i] - vm)
	}
	slope := tv / tt
	var rest, lagged, before float64
	for i, t := range times {
		r := values[i] - vm - slope*(t-tm)
		rest += r * r
		if i > 0 {
			lagged += r * before
		}
		before = r
	}
	correlation := 0.0
	if rest > 0 {
		correlation = min(max(lagged/rest, 0), 0.95)
	}
	effective := max(n*(1-correlation)/(1+correlation), 3)
	half := 1.96 * math.Sqrt(rest/max(effective-2, 1)/(tt*effective/n))
	return line{vm, slope, half}
}

// growth is the least growth over a duration in seconds that the fit is sure of.
func (l line) growth(seconds float64) float64 { return (l.slope - l.half) * seconds }

// flat reports that no growth of more than so much over the duration is certain.
func (l line) flat(seconds, tolerance float64) bool { return l.growth(seconds) <= tolerance }

// quantile of values, which it sorts; 0 when there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}
