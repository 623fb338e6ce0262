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

// state is what the adaptation carries from window to window. Latencies are nanoseconds per unit of cost.
type state struct {
	limit int

	short float64 // recent latency
	count float64 // samples behind short, decaying
	cv2   float64 // squared coefficient of variation of one sample
	long  float64 // normal latency
	seen  float64 // samples behind long, up to seedSamples
	best  float64 // what normal has been at best

	trough int  // limit after the last shedding; 0 = never
	streak int  // windows of growth since
	blind  bool // no sample has come since
}

// evidence is what one window showed.
type evidence struct {
	utilization float64
	samples     int     // latency samples
	latency     float64 // their sum over the sum of their costs
	spread      float64 // squared coefficient of variation of one sample about that; 0 when there are fewer than two
	completed   int
	failed      int // upstream errors and time-outs
	overloaded  int // refusals by the upstream
	pressure    Severity
	cut         bool // critical pressure has already lowered the limit within the last window
	waiting     bool // someone waits
}

const (
	// overloadShare is the share of refusals among the upstream's answers from which they count as overload; fewer only
	// stop growth, as any failure does.
	overloadShare = 0.05
	// noiseMargin is how many standard errors of the short average a rise must show beyond the threshold.
	noiseMargin = 1
	// shortSamples is how many samples the short average needs before it forgets at its full rate.
	shortSamples = 30
	// fullSamples is how many samples make a window count fully in the long average.
	fullSamples = 8
	// seedSamples is over how many samples the long average is a plain mean, before it becomes a moving one.
	seedSamples = 100
	// troughSpan is how far above the last trough the limit may be for latency to count as normal.
	troughSpan = 1.1
	// normalSpan is how far above the best normal latency may go.
	normalSpan = 1.3
	// bestAlpha is how fast the best follows a better normal.
	bestAlpha = 0.02
	// bestLeak is by how much the best rises in a window in which normalSpan binds: 43 % in an hour of 1 s windows.
	bestLeak = 1.0001
	// floorLeak is the same for normal and best while shedding at the least limit: twice in six minutes.
	floorLeak = 1.002
	// accelerateAfter is after how many windows of growth the step of growth grows by another step.
	accelerateAfter = 8
)

// step is the whole of the adaptation: from what is known and what a window showed to the next limit and why.
func step(s Settings, st state, e evidence) (state, StepReason) {
	st.observe(s, e)
	limit, reason := decide(s, st, e)
	switch {
	case reason.shed():
		st.shed(s, limit)
	case e.samples > 0:
		st.learn(s, e)
	}
	if reason == StepGrow {
		st.streak++
	}
	if e.utilization <= s.UtilizationLow {
		st.short = st.long
	}
	st.limit = min(max(limit, s.MinLimit), s.MaxLimit)
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
	case e.overloaded > 0 && float64(e.overloaded) >= overloadShare*float64(e.overloaded+e.completed+e.failed):
		return scale(st.limit, s.DecreaseFactor), StepOverload
	case e.samples > 0 && s.loaded(e) && st.gradient() >= s.LatencyGradientThreshold+noiseMargin*st.noise():
		return scale(st.limit, s.DecreaseFactor), StepLatency
	case e.cut:
		return st.limit, StepHold
	case e.failed > 0 || e.overloaded > 0:
		return st.limit, StepFrozen
	case e.utilization >= s.UtilizationHigh && e.completed > 0 && !st.blind:
		return st.limit + min(s.IncreaseStep*(1+st.streak/accelerateAfter), s.MaxIncreasePerWindow), StepGrow
	case e.utilization <= s.UtilizationLow && !e.waiting && st.limit < s.InitialLimit:
		return min(s.InitialLimit, st.limit+s.recovery()), StepRecover
	}
	return st.limit, StepHold
}

// loaded reports whether a slow upstream can be our doing: only when at least about half of the limit was used.
func (s Settings) loaded(e evidence) bool {
	return e.utilization > (s.UtilizationLow+s.UtilizationHigh)/2
}

// recovery is by how much an unused limit returns towards the initial one in a window.
func (s Settings) recovery() int { return min(s.IncreaseStep, s.MaxIncreasePerWindow) }

// observe folds a window's samples into the short average: by number, so that a window of two does not weigh as much as
// one of two hundred, and so that scattered samples are remembered until there are enough of them.
func (st *state) observe(s Settings, e evidence) {
	if e.samples == 0 {
		return
	}
	n := float64(e.samples)
	if e.samples > 1 {
		st.cv2 += s.LongAlpha * min(1, n/fullSamples) * (e.spread - st.cv2)
	}
	old := (1 - min(s.ShortAlpha, n/shortSamples)) * st.count
	st.short = (old*st.short + n*e.latency) / (old + n)
	st.count = old + n
	st.blind = false
	if st.long == 0 {
		st.long = st.short
	}
}

// learn folds a window's samples into what is normal: those at little load, those near the last trough, where the limit
// is known to be low enough, all before the first shedding, and those that are clearly better than normal. The rest, on
// the way from a trough to the next peak, is what normal is compared with.
func (st *state) learn(s Settings, e evidence) {
	n := float64(e.samples)
	alpha := s.LongAlpha * min(1, n/fullSamples)
	seeding := st.seen < seedSamples
	if seeding {
		st.seen += n
		alpha = max(alpha, n/st.seen)
	}
	quiet := e.utilization <= s.UtilizationLow
	atTrough := st.trough == 0 || float64(st.limit) <= troughSpan*float64(st.trough)
	if quiet || atTrough || st.gradient() < -s.LatencyGradientThreshold {
		st.long += alpha * (e.latency - st.long)
	}
	switch {
	case seeding:
		st.best = st.long
	case quiet || st.long < st.best:
		st.best += bestAlpha * (st.long - st.best)
	}
	if highest := normalSpan * st.best; st.long > highest {
		st.long = highest
		st.best *= bestLeak
	}
}

// shed forgets the evidence that the limit was lowered on; what comes next is about the new limit. The long average does
// not move, except at the least limit: latency that stays high there is not the limit's doing, and may be the new normal.
func (st *state) shed(s Settings, limit int) {
	if st.limit == s.MinLimit {
		st.best *= floorLeak
		st.long = min(st.long*floorLeak, max(st.long, normalSpan*st.best))
	}
	st.trough, st.streak, st.count, st.blind = max(limit, s.MinLimit), 0, 0, true
}

// gradient is how far recent latency is above normal.
func (st *state) gradient() float64 {
	if st.long == 0 {
		return 0
	}
	return (st.short - st.long) / st.long
}

// noise is the standard error of the short average, relative to it.
func (st *state) noise() float64 {
	if st.count == 0 {
		return 0
	}
	return math.Sqrt(st.cv2 / st.count)
}

func scale(limit int, factor float64) int { return int(math.Floor(float64(limit) * factor)) }
