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
	StepLatency  StepReason = "latency"  // short latency well above long
	StepGrow     StepReason = "grow"     // used, and something completed
	StepRecover  StepReason = "recover"  // idle and under the initial limit
)

// shed reports whether the step lowered the limit because of overload.
func (r StepReason) shed() bool {
	return r == StepCritical || r == StepPressure || r == StepOverload || r == StepLatency
}

// state is what the adaptation carries from window to window.
type state struct {
	limit       int
	short, long float64 // latency per unit of cost, in nanoseconds; 0 before the first sample
}

// evidence is what one window showed.
type evidence struct {
	utilization float64
	samples     int     // latency samples
	latency     float64 // their sum over the sum of their costs
	completed   int
	failed      int // upstream errors and time-outs
	overloaded  int // refusals by the upstream
	pressure    Severity
	cut         bool // critical pressure has already lowered the limit within the last window
	idle        bool // nothing in flight and nobody waiting
}

// overloadShare is the share of refusals among the upstream's answers from which they count as overload; fewer only stop
// growth, as any failure does.
const overloadShare = 0.05

// step is the whole of the adaptation: from what is known and what a window showed to the next limit and why.
func step(s Settings, st state, e evidence) (state, StepReason) {
	if e.samples > 0 {
		if st.long == 0 {
			st.short, st.long = e.latency, e.latency
		}
		st.short += s.ShortAlpha * (e.latency - st.short)
	}
	limit, reason := decide(s, st, e)
	if e.samples > 0 && !reason.shed() {
		st.long += s.LongAlpha * (e.latency - st.long)
	}
	if e.utilization <= s.UtilizationLow {
		st.short = st.long
	}
	st.limit = min(max(limit, s.MinLimit), s.MaxLimit)
	return st, reason
}

func decide(s Settings, st state, e evidence) (int, StepReason) {
	loaded := e.utilization > s.UtilizationLow
	switch {
	case e.pressure == Critical && e.cut:
		return st.limit, StepHold
	case e.pressure == Critical:
		return scale(st.limit, s.CriticalDecreaseFactor), StepCritical
	case e.pressure == High:
		return scale(st.limit, s.DecreaseFactor), StepPressure
	case e.overloaded > 0 && float64(e.overloaded) >= overloadShare*float64(e.overloaded+e.completed+e.failed):
		return scale(st.limit, s.DecreaseFactor), StepOverload
	case e.samples > 0 && loaded && gradient(st) >= s.LatencyGradientThreshold:
		return scale(st.limit, s.DecreaseFactor), StepLatency
	case e.cut:
		return st.limit, StepHold
	case e.failed > 0 || e.overloaded > 0:
		return st.limit, StepFrozen
	case e.utilization >= s.UtilizationHigh && e.completed > 0:
		return st.limit + min(s.IncreaseStep, s.MaxIncreasePerWindow), StepGrow
	case e.idle && !loaded && st.limit < s.InitialLimit:
		return min(s.InitialLimit, st.limit+min(s.IncreaseStep, s.MaxIncreasePerWindow)), StepRecover
	}
	return st.limit, StepHold
}

func gradient(st state) float64 { return (st.short - st.long) / st.long }

func scale(limit int, factor float64) int { return int(math.Floor(float64(limit) * factor)) }
