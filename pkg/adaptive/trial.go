package adaptive

import "math"

// trial is an experiment: the limit has been lowered, and what that does to latency says whether it was right.
type trial struct {
	from    int     // the limit before
	above   int     // a limit that is known to be too high; 0 = none
	latency float64 // at that limit
	count   float64 // samples behind that
	took    float64 // mean time of those samples
	windows int     // since the limit was lowered
	spent   int     // windows of the search so far
	watch   bool    // the limit is not lowered yet: latency there is measured first
	search  bool    // not because latency is high: go on until a lower limit costs work
}

const (
	// kneeElasticity is that of latency to the limit at which the limit is right, by Kleinrock's power about one half. It is less
	// over a long step, most of which is below the knee.
	kneeElasticity, searchElasticity = 0.45, 0.35
	// paysElasticity is the share of that up to which more concurrency pays well.
	paysElasticity = 0.6
	// searchStep is the logarithm of the step from which searchElasticity holds.
	searchStep = 0.4
	// provenWindows is for how many windows in which the limit binds a search need not be repeated.
	provenWindows = 180
	// againstElasticity is the elasticity below which latency went against the limit.
	againstElasticity = -0.5
	// normalDecay is by how much normal falls when a trial has confirmed that latency was too far above it.
	normalDecay = 0.95
	// verdictError is the relative standard error to which a search measures latency.
	verdictError = 0.03
	// enoughSamples and mostSamples bound how many samples that takes.
	enoughSamples, mostSamples = 30, 120
	// spentShare bounds what searches take: one in so many windows.
	spentShare = 8
	// learnWindows is for how many windows after a search latencies at lower limits are normal, too.
	learnWindows = 30
	// verdictMargin is how many standard errors decide it earlier.
	verdictMargin = 1.2
	// verdictSamples is how many samples a verdict takes at least.
	verdictSamples = 4
	// longTrial is after how many windows what has been seen decides.
	longTrial = 30
	// longestTrial is after how many windows it ends without a verdict.
	longestTrial = 120
)

func (t *trial) running() bool { return t.from > 0 }

// slow reports whether latency is well above normal at a limit that binds.
func (st *state) slow(s Settings, e evidence) bool {
	l := st.level()
	return l.count >= leastShort && l.long > 0 && s.binds(e) && st.steady && st.limit > s.MinLimit &&
		l.gradient() >= s.LatencyGradientThreshold+noiseMargin*l.noise()
}

// stale reports whether it is time to search for what is normal.
func (st *state) stale(s Settings, e evidence) bool {
	return st.proven <= 0 && s.binds(e) && st.steady && st.level().long > 0 && st.limit > s.MinLimit
}

// wanted is how many samples a search takes at a limit: fewer at first, when its steps are large.
func (l *level) wanted(found bool) float64 {
	if !found {
		return enoughSamples
	}
	return min(max(enoughSamples, l.cv2/(verdictError*verdictError)), mostSamples)
}

// watch latency at the present limit before a search lowers it.
func (st *state) watch(s Settings, e evidence) (int, StepReason) {
	t, l := st.trial, st.level()
	switch {
	case !s.binds(e):
		st.trial = trial{}
	case st.steady && (l.count >= l.wanted(st.found) || l.count >= verdictSamples && t.windows >= longTrial):
		if !st.found {
			return st.begin(s.CriticalDecreaseFactor, true) // the knee may be anywhere
		}
		return st.begin(s.DecreaseFactor, true)
	}
	return st.limit, StepHold
}

// begin a trial.
func (st *state) begin(factor float64, search bool) (int, StepReason) {
	l := st.level()
	count := l.count
	if !st.trial.running() {
		count = min(count, l.memory())
	}
	st.trial = trial{from: st.limit, latency: l.short, count: count, took: l.took, search: search, spent: st.trial.spent}
	return scale(st.limit, factor), StepLatency
}

// try to come to a verdict.
func (st *state) try(s Settings, e evidence) (int, StepReason) {
	t, l := &st.trial, st.level()
	t.windows++
	t.spent++
	if t.watch {
		return st.watch(s, e)
	}
	over := e.utilization <= s.UtilizationLow || t.windows >= longestTrial
	if !over && (l.count < verdictSamples || !st.steady) {
		return st.limit, StepHold
	}
	step := math.Log(float64(t.from) / float64(st.limit))
	knee := kneeElasticity
	if step > searchStep {
		knee = searchElasticity
	}
	elasticity := math.Log(t.latency/l.short) / step
	deviation := math.Sqrt(l.cv2/t.count+l.cv2/max(1, l.count)) / step
	clear := t.windows >= longTrial || (elasticity >= knee || t.search) && l.count >= t.count || math.Abs(elasticity-knee) >= verdictMargin*deviation
	switch {
	case !over && !clear:
		return st.limit, StepHold
	case !over && elasticity < againstElasticity && l.gradient() >= s.LatencyGradientThreshold:
		return st.begin(s.DecreaseFactor, t.search) // something else made the upstream slower: anew from here
	case over || elasticity < againstElasticity && t.above == 0:
		// Nobody is there to try it on, or something else was stronger: nothing is concluded.
		st.growth.stop(t.from, st.limit)
		st.trial = trial{}
		return st.limit, StepRestore
	case elasticity < knee:
		return st.restore(s, elasticity, knee)
	case t.search && l.count < l.wanted(st.found) && t.windows < longTrial && st.limit > s.MinLimit:
		return st.limit, StepHold // to know latency here for the next comparison
	}
	// The higher limit bought nothing. Further down, until a step costs work or latency is normal.
	above := t.from
	switch {
	case !t.search && l.gradient() < s.LatencyGradientThreshold/2:
		st.settle(above, l.long*normalDecay)
		st.right = st.limit
		st.proven /= 2 // what is normal may have changed
		return st.limit, StepHold
	case st.limit <= s.MinLimit:
		st.settle(above, l.short)
		return st.limit, StepHold
	}
	factor := s.DecreaseFactor
	if !st.found || l.gradient() >= 1 {
		factor = s.CriticalDecreaseFactor // the knee may be far below
	}
	limit, reason := st.begin(factor, t.search)
	st.trial.above = above
	return limit, reason
}

// restore ends a search whose last step cost work: the limit grows back to where it was, and latency there is normal.
func (st *state) restore(s Settings, elasticity, knee float64) (int, StepReason) {
	from, normal := st.trial.from, max(st.trial.latency, st.level().short)
	st.limit = max(st.limit, scale(from, s.DecreaseFactor))
	if elasticity >= paysElasticity*knee {
		st.settle(from, normal/(1+s.LatencyGradientThreshold/2))
		return st.limit, StepRestore
	}
	st.settle(from, normal)
	st.growth.hurry(st.limit)
	st.proven /= 4 // the knee is further up
	return st.limit, StepRestore
}

// settle ends a search. right is the limit that it has found, or the first that is too high: growth slows near there.
func (st *state) settle(right int, normal float64) {
	st.level().long = normal
	st.proven = max(provenWindows, spentShare*st.trial.spent)
	st.trial, st.found, st.right, st.learning = trial{}, true, right, learnWindows
	st.growth.stop(right, st.limit)
}
