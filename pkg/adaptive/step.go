package adaptive

import (
	"math"
	"time"
)

// StepReason is why the limit is what it is after a step.
type StepReason string

// The reasons of a step.
const (
	StepHold     StepReason = "hold"     // nothing says that the limit is wrong
	StepFrozen   StepReason = "frozen"   // errors or time-outs: no growth on this evidence
	StepCritical StepReason = "critical" // critical pressure
	StepPressure StepReason = "pressure" // high pressure
	StepOverload StepReason = "overload" // the upstream refused
	StepLatency  StepReason = "latency"  // a trial of a lower limit: recent latency well above normal, or normal not known
	StepRestore  StepReason = "restore"  // the lower limit cost more than it helped
	StepGrow     StepReason = "grow"     // used, and something completed
	StepEase     StepReason = "ease"     // latency a little above normal
	StepRecover  StepReason = "recover"  // hardly used and under the initial limit
)

// shed reports whether the step lowered the limit.
func (r StepReason) shed() bool {
	return r == StepCritical || r == StepPressure || r == StepOverload || r == StepLatency
}

// state is what the adaptation carries from window to window.
type state struct {
	limit    int
	latency  [populations]level
	speaker  population // which of them speaks for the upstream
	silent   int        // windows in which first tokens were not seen, and other answers were
	growth   growth
	trial    trial
	since    time.Duration // the limit was moved by a step down or back, or began to bind
	steady   bool          // it has been long enough for samples to be representative
	bound    bool          // the limit was what kept requests waiting, in the last window
	right    int           // the limit that the last search has found
	learning int           // windows for which latencies below that are normal
	found    bool          // a search has come to an end
	proven   int           // windows for which the last search holds
}

// evidence is what one window showed.
type evidence struct {
	utilization float64
	fresh       [populations]sample // latencies of requests forwarded since the limit was last moved by a step down or back
	completed   int
	others      answers // lately, of all lanes but the one with most refusals and failures
	pressure    Severity
	cut         bool // critical pressure has already lowered the limit within the last window
	waiting     bool // someone waits
	strained    bool // pressure was not normal when it was last sampled
}

// bindsFrom is the utilisation from which the limit is what keeps requests waiting.
const bindsFrom = 0.95

// growthSamples is how many samples in a window are enough for full growth.
const growthSamples = 3

// overloadShare is the share of refusals among the upstream's answers from which they count as overload; fewer only stop
// growth, as any failure does.
const overloadShare = 0.02

// step is the whole of the adaptation: from what is known and what a window showed to the next limit and why.
func step(s Settings, st state, e evidence) (state, StepReason) {
	bound := s.binds(e)
	if bound && !st.bound { // latency is about to change, and not because the limit does
		st.moved()
	}
	st.since += s.Window
	st.observe(s, e)
	before := st.limit
	limit, reason := st.decide(s, e)
	st.limit = s.bounded(limit)
	if reason.shed() {
		st.moved()
		st.growth.stop(before, st.limit)
	}
	if st.bound = bound; bound {
		st.proven--
		st.learning--
	}
	return st, reason
}

// decide is what to do about the limit. The result is not yet within its bounds.
func (st *state) decide(s Settings, e evidence) (int, StepReason) {
	switch {
	case e.pressure == Critical && e.cut:
		return st.limit, StepHold
	case e.pressure == Critical:
		st.trial = trial{}
		return scale(st.limit, s.CriticalDecreaseFactor), StepCritical
	case e.pressure == High:
		st.trial = trial{}
		return scale(st.limit, s.DecreaseFactor), StepPressure
	case e.others.overloaded():
		st.trial = trial{}
		return scale(st.limit, s.DecreaseFactor), StepOverload
	case st.trial.running() && !(st.trial.watch && st.slow(s, e)):
		return st.try(s, e)
	case st.slow(s, e):
		return st.begin(s.DecreaseFactor, !st.found)
	case st.stale(s, e):
		st.trial = trial{from: st.limit, watch: true}
		st.moved()
		return st.limit, StepHold
	case e.cut, e.strained:
		return st.limit, StepHold
	case e.others.doubtful():
		return st.limit, StepFrozen
	case e.utilization >= s.UtilizationHigh && e.completed > 0:
		room := 1 - st.level().gradient()/(s.LatencyGradientThreshold/2)
		if room <= 0 {
			if !s.binds(e) {
				return st.limit, StepHold
			}
			return st.growth.back(s, st.limit, max(room, -1)), StepEase
		}
		if st.level().long > 0 { // few samples tell of growth too late
			room = min(room, float64(e.fresh[st.speaker].n)/growthSamples)
		}
		return st.growth.next(s, st.limit, min(room, 1)), StepGrow
	case e.utilization <= s.UtilizationLow && !e.waiting && st.limit < s.InitialLimit:
		return min(s.InitialLimit, st.limit+s.recovery()), StepRecover
	}
	return st.limit, StepHold
}

// recovery is by how much an unused limit returns towards the initial one in a window.
func (s Settings) recovery() int { return min(s.IncreaseStep, s.MaxIncreasePerWindow) }

// binds reports whether the limit was what kept requests waiting. With less in use latency cannot be its doing.
func (s Settings) binds(e evidence) bool { return e.utilization >= max(bindsFrom, s.UtilizationHigh) }

func scale(limit int, factor float64) int { return int(math.Floor(float64(limit) * factor)) }
