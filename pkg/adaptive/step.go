package adaptive

import "math"

// StepReason is why the limit is what it is after a step.
type StepReason string

// The reasons of a step.
const (
	StepHold     StepReason = "hold"     // nothing says that the limit is wrong
	StepFrozen   StepReason = "frozen"   // errors or time-outs: no growth on this evidence
	StepCritical StepReason = "critical" // critical pressure
	StepPressure StepReason = "pressure" // high pressure
	StepOverload StepReason = "overload" // the upstream refused
	StepLatency  StepReason = "latency"  // recent latency well above normal
	StepGrow     StepReason = "grow"     // used, and something completed
	StepRecover  StepReason = "recover"  // hardly used and under the initial limit
)

// shed reports whether the step lowered the limit because of overload.
func (r StepReason) shed() bool {
	return r == StepCritical || r == StepPressure || r == StepOverload || r == StepLatency
}

// state is what the adaptation carries from window to window. Latencies are nanoseconds per unit of expected cost.
type state struct {
	limit int

	short float64 // recent latency
	count float64 // samples behind short since the limit was last lowered
	long  float64 // normal latency: that of a calm upstream
	seen  float64 // samples behind long, up to settledSamples
	cv2   float64 // squared coefficient of variation of one sample

	since     int     // windows since the limit was last lowered; 0 = never
	streak    int     // windows of growth since
	reference float64 // the limit of better days: what calm is measured by
	slope     slope
}

// evidence is what one window showed.
type evidence struct {
	utilization float64
	load        float64 // mean active cost
	fresh       sample  // latencies of requests forwarded since the limit was last lowered
	calm        sample  // those of them that found the upstream calm
	stale       sample  // latencies of requests forwarded before
	completed   int
	others      answers // lately, of all lanes but the one with most refusals and failures
	pressure    Severity
	cut         bool // critical pressure has already lowered the limit within the last window
	waiting     bool // someone waits
	strained    bool // pressure was not normal when it was last sampled
}

const (
	// overloadShare is the share of refusals among the upstream's answers from which they count as overload; fewer only
	// stop growth, as any failure does.
	overloadShare = 0.02
	// noiseMargin is how many standard errors a rise must show beyond the threshold.
	noiseMargin = 1.5
	// flatTolerance is the factor on the threshold while the elasticity says that more concurrency still pays.
	flatTolerance = 2.5
	// fullSamples is how many samples make a window count fully in the averages.
	fullSamples = 15
	// jump is the rise that no step of growth explains: what was known about the slope is about another upstream.
	jump = 0.8
	// enoughSamples must have been forwarded since the limit was last lowered before latency lowers it again, unless it is
	// far above normal.
	enoughSamples = 4
	// staleFactor is how far above normal the latencies of requests from before must be to count as well.
	staleFactor = 2
	// seedSamples is how many samples the long average takes from any load before it insists on calm; it is a plain mean
	// up to settledSamples.
	seedSamples, settledSamples = 30, 200
	// calmLeak is by how much normal may rise in a window although the limit is being lowered, when that is the latency of
	// requests that found the upstream calm: twice in six minutes, a hundred times in forty.
	calmLeak = 1.002
	// flatCeiling is up to how far above normal latency may be to become normal because it does not answer to the limit.
	flatCeiling = 2
	// steepRate is by how much normal falls in a window while the elasticity says that the limit is far too high.
	steepRate = 0.007
	// referenceRate is how fast the reference follows a limit that stays below it.
	referenceRate = 1.0 / 600
	// blindWindows is for how long after lowering the limit it does not grow without fresh samples.
	blindWindows = 8
	// accelerateAfter is after how many windows of growth the step of growth grows by another step.
	accelerateAfter = 8
)

// step is the whole of the adaptation: from what is known and what a window showed to the next limit and why.
func step(s Settings, st state, e evidence) (state, StepReason) {
	if st.since > 0 {
		st.since++
	}
	st.observe(s, e)
	if st.count >= enoughSamples && st.gradient() >= jump+2*st.noise() {
		st.slope = slope{}
	}
	limit, reason := decide(s, st, e)
	st.learn(s, e, reason)
	if e.utilization <= s.UtilizationLow {
		st.short = st.long
	}
	st.limit = min(max(limit, s.MinLimit), s.MaxLimit)
	switch {
	case reason.shed():
		st.since, st.streak, st.count = 1, 0, 0
	case reason == StepGrow:
		st.streak++
	}
	st.reference = max(st.reference, float64(st.limit))
	st.reference -= referenceRate * (st.reference - float64(st.limit))
	return st, reason
}

// decide is what to do about the limit. The result is not yet within its bounds.
func decide(s Settings, st state, e evidence) (int, StepReason) {
	switch {
	case e.pressure == Critical && e.cut:
		return st.limit, StepHold
	case e.pressure == Critical:
		return scale(st.limit, s.CriticalDecreaseFactor), StepCritical
	case e.pressure == High:
		return scale(st.limit, s.DecreaseFactor), StepPressure
	case e.others.overloaded():
		return scale(st.limit, s.DecreaseFactor), StepOverload
	case st.slow(s, e):
		return scale(st.limit, s.DecreaseFactor), StepLatency
	case e.cut, e.strained:
		return st.limit, StepHold
	case e.others.doubtful():
		return st.limit, StepFrozen
	case e.utilization >= s.UtilizationHigh && e.completed > 0 && !st.blind():
		return st.limit + min(s.IncreaseStep*(1+st.streak/accelerateAfter), s.MaxIncreasePerWindow), StepGrow
	case e.utilization <= s.UtilizationLow && !e.waiting && st.limit < s.InitialLimit:
		return min(s.InitialLimit, st.limit+s.recovery()), StepRecover
	}
	return st.limit, StepHold
}

// slow reports whether latency says that the limit is too high. That can be our doing only when at least about half of
// the limit was used.
func (st *state) slow(s Settings, e evidence) bool {
	if st.long == 0 || e.utilization <= (s.UtilizationLow+s.UtilizationHigh)/2 {
		return false
	}
	if e.fresh.n == 0 {
		// Requests from before the limit was lowered: only when they are far too slow, and not at every window.
		return e.stale.n > 0 && st.since > 2 && e.stale.mean() >= staleFactor*st.long
	}
	if st.since > 0 && st.count < enoughSamples && st.gradient() < staleFactor {
		return false
	}
	threshold := s.LatencyGradientThreshold
	if elasticity, known := st.slope.elasticity(); known && elasticity < kneeFrom {
		threshold *= flatTolerance
	}
	return st.gradient() >= threshold+noiseMargin*st.noise()
}

// blind reports whether nothing has been seen yet of what the lowered limit did.
func (st *state) blind() bool { return st.since > 0 && st.since <= blindWindows && st.count == 0 }

// recovery is by how much an unused limit returns towards the initial one in a window.
func (s Settings) recovery() int { return min(s.IncreaseStep, s.MaxIncreasePerWindow) }

// observe folds a window's samples into the short average, and into the slope when the limit was what bound. A window
// counts by its samples, and evidence from before the limit was lowered does not count at all.
func (st *state) observe(s Settings, e evidence) {
	if e.fresh.n == 0 || e.fresh.mean() == 0 {
		return
	}
	n, latency := float64(e.fresh.n), e.fresh.mean()
	if st.long == 0 {
		st.short, st.long = latency, latency
	}
	if scatter, ok := e.fresh.scatter(); ok {
		st.cv2 += s.LongAlpha * min(1, n/fullSamples) * (scatter - st.cv2)
	}
	st.count += n
	st.short += weight(s.ShortAlpha, n, st.count) * (latency - st.short)
	// After shedding it takes a while until no more runs than the limit allows.
	if limit := float64(st.limit); e.utilization >= s.UtilizationHigh && e.load <= 1.05*limit && latency < flatCeiling*st.long {
		st.slope.add(limit, latency, n)
	}
}

// learn what latency is normal: that of requests that found the upstream calm, of any while the limit is not what binds
// or little is known yet, and of those that are clearly better than normal. While shedding it stands still but for the leak:
// a long overload does not become normal, nor is a limit held down for ever by an upstream that is slower for good.
func (st *state) learn(s Settings, e evidence, reason StepReason) {
	from := e.calm
	if e.utilization < s.UtilizationHigh || st.seen < seedSamples || st.gradient() < -s.LatencyGradientThreshold {
		from = e.fresh
	}
	elasticity, known := st.slope.elasticity()
	switch n, latency := float64(from.n), from.mean(); {
	case reason.shed():
		if e.calm.n > 0 {
			st.long = max(st.long, min(st.long*calmLeak, e.calm.mean()))
		}
	case n > 0:
		st.seen = min(st.seen+n, settledSamples)
		st.long += weight(s.LongAlpha, n, st.seen) * (latency - st.long)
	case known && elasticity < flatBelow && st.short > st.long && st.short < flatCeiling*st.long:
		st.long += weight(s.LongAlpha, float64(e.fresh.n), settledSamples) * (st.short - st.long)
	}
	if known && elasticity > steepFrom && e.fresh.n > 0 && e.utilization >= s.UtilizationHigh {
		st.long *= 1 - steepRate
	}
}

// weight of n samples in a moving average that has seen so many, these included: a plain mean at first.
func weight(alpha, n, seen float64) float64 {
	if n == 0 {
		return 0
	}
	return max(1-math.Pow(1-alpha, min(1, n/fullSamples)), min(1, n/seen))
}

// gradient is how far recent latency is above normal.
func (st *state) gradient() float64 {
	if st.long == 0 {
		return 0
	}
	return (st.short - st.long) / st.long
}

// noise is the standard error of the gradient.
func (st *state) noise() float64 { return math.Sqrt(st.cv2 * (1/st.count + 1/st.seen)) }

func scale(limit int, factor float64) int { return int(math.Floor(float64(limit) * factor)) }
