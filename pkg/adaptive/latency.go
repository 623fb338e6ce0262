package adaptive

import (
	"math"
	"time"
)

// population is requests whose latencies can be compared.
type population uint8

// The populations. What a whole answer takes includes its generation, of which nobody knows how long it is, so that it is
// not compared with the first token of a stream.
const (
	firstTokens population = iota // streams, to their first token
	wholes                        // answers in one piece, and streams whose first token cannot be seen, to their end
	populations
)

func (c Class) population() population {
	if c == Whole {
		return wholes
	}
	return firstTokens
}

// level is the latency of a population, in nanoseconds per unit of expected cost.
type level struct {
	short   float64 // recently, since the limit was last moved
	count   float64 // samples behind short
	long    float64 // what is normal: below the limit, or at the limit that a trial has found right
	seen    float64 // samples behind long, up to settledSamples
	cv2     float64 // squared coefficient of variation of one sample
	windows float64 // windows behind cv2, up to varianceWindows
	took    float64 // mean time of the samples behind short, in nanoseconds
}

const (
	// varianceWindows is how many windows the variance is a mean of. What a window adds is bounded by mostVariance: more is a
	// change, not noise.
	varianceWindows = 50
	mostVariance    = 4
	// noiseMargin is how many standard errors a rise must show beyond the threshold.
	noiseMargin = 2
	// fullSamples is how many samples make a window count fully in the long average.
	fullSamples = 15
	// settledSamples is up to how many samples the long average is a plain mean.
	settledSamples = 200
	// shortError is the standard error that the short average aims at: so many samples does it remember.
	shortError = 0.06
	// steadyFactor is how many times the mean latency must have passed since the limit was moved.
	steadyFactor = 1.5
	// silentWindows is for how many windows without first tokens the other answers speak for the upstream.
	silentWindows = 10
	// steadyWindows must have passed at least: those who waited come all at once when a limit rises.
	steadyWindows = 3
	// leastShort and mostShort bound how many samples the short average remembers.
	leastShort, mostShort = 8, 50
)

// memory is how many samples the short average remembers.
func (l *level) memory() float64 {
	return min(max(leastShort, l.cv2/(shortError*shortError)), mostShort)
}

// add a window's samples to the short average.
func (l *level) add(s Settings, f *sample, memory float64, steady bool) {
	n, latency := float64(f.n), f.mean()
	if n == 0 || latency == 0 {
		return
	}
	if l.long == 0 {
		l.short, l.long, l.cv2 = latency, latency, 1
	}
	if l.count > 0 && steady {
		deviation := latency/l.short - 1
		l.windows = min(l.windows+1, varianceWindows)
		l.cv2 += (min(n*deviation*deviation, mostVariance) - l.cv2) / l.windows
	}
	l.count += n
	w := min(1, n/min(l.count, memory))
	if l.count > n && !math.IsInf(memory, 1) {
		w = min(w, s.ShortAlpha)
	}
	l.short += w * (latency - l.short)
	l.took += w * (f.latency/n - l.took)
}

// learn takes a window's samples for normal.
func (l *level) learn(s Settings, f *sample) {
	n, latency := float64(f.n), f.mean()
	if n == 0 || latency == 0 {
		return
	}
	l.seen = min(l.seen+n, settledSamples)
	l.long += max(1-math.Pow(1-s.LongAlpha, min(1, n/fullSamples)), min(1, n/l.seen)) * (latency - l.long)
}

// steady reports whether the samples have had the time to be representative since the limit was moved: before, the quick
// ones come first.
func (l *level) steady(s Settings, since time.Duration, before float64) bool {
	return float64(since) >= max(float64(steadyWindows*s.Window), steadyFactor*max(l.took, before))
}

// gradient is how far recent latency is above normal.
func (l *level) gradient() float64 {
	if l.long == 0 {
		return 0
	}
	return (l.short - l.long) / l.long
}

// noise is the standard error of the gradient.
func (l *level) noise() float64 {
	return math.Sqrt(l.cv2 * (1/min(l.count, l.memory()) + 1/max(1, l.seen)))
}

// rescale a population's latencies to another shape of what is expected.
func (st *state) rescale(of population, factor float64) {
	l := &st.latency[of]
	l.short, l.long = l.short*factor, l.long*factor
	if of == st.speaker {
		st.trial.latency *= factor
	}
}

// level is that of the population that speaks for the upstream.
func (st *state) level() *level { return &st.latency[st.speaker] }

// observe folds a window's samples into the averages. Normal is the latency below the limit, and any that is clearly
// better; at the limit it is what the last trial says.
func (st *state) observe(s Settings, e evidence) {
	st.chooseSpeaker(e)
	for i := range st.latency {
		l, f := &st.latency[i], &e.fresh[i]
		memory := l.memory()
		if st.trial.running() {
			memory = math.Inf(1)
		}
		l.add(s, f, memory, st.steady)
		switch {
		case st.steady && l.gradient() < -s.LatencyGradientThreshold-noiseMargin*l.noise():
			l.long = l.short
		case st.trial.running():
		case !s.binds(e), st.learning > 0 && st.limit < st.right && l.gradient() > 0:
			l.learn(s, f)
		}
		if e.utilization <= s.UtilizationLow {
			l.short = l.long
		}
	}
	if l := st.level(); !st.steady && l.count > 0 && l.steady(s, st.since, st.trial.took) {
		st.steady, l.count = true, 0
	}
}

// chooseSpeaker decides which population speaks for the upstream: first tokens, unless for some windows there were only answers to
// their end.
func (st *state) chooseSpeaker(e evidence) {
	switch {
	case e.fresh[firstTokens].n > 0:
		st.silent = 0
	case e.fresh[wholes].n > 0:
		st.silent++
	}
	speaker := firstTokens
	if st.silent >= silentWindows {
		speaker = wholes
	}
	if speaker != st.speaker {
		st.speaker, st.trial = speaker, trial{}
		st.moved()
	}
}

// moved begins the short averages anew: samples from before are about another limit.
func (st *state) moved() {
	st.since, st.steady = 0, false
	for i := range st.latency {
		st.latency[i].count = 0
	}
}
