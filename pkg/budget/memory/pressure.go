package memory

import (
	"math"
	"time"
)

// The signals, as Pressure.Signal names them.
const (
	SignalMemoryRatio = "memory_ratio"
	SignalMemoryHigh  = "memory_high"
	SignalPSISome     = "psi_some"
	SignalPSIFull     = "psi_full"
	SignalOOM         = "oom"
	SignalOOMKill     = "oom_kill"
	signalStale       = "stale"
)

// reading is one signal of one sample next to its thresholds.
type reading struct {
	signal                         string
	value                          float64 // NaN = could not be read
	high, critical, recoveryAtMost float64
	immediate                      bool // needs no second sample
}

func (r reading) level() Severity {
	switch {
	case r.value >= r.critical:
		return Critical
	case r.value >= r.high:
		return High
	default: // and NaN
		return Normal
	}
}

func (r reading) threshold(s Severity) float64 {
	if s == Critical {
		return r.critical
	}
	return r.high
}

// pressureState turns samples into a severity. It does no I/O and keeps no time of its own.
//
//   - The level of a sample is that of its highest signal: >= critical, >= high, else normal. What two samples in a row
//     reached is raised; growth of an OOM counter is critical at once.
//   - Each signal holds what it has raised, and no more than it could raise: critical steps down to high once the signal is
//     under its critical value, high to normal once it is at or under its recovery value. The severity is the highest of
//     what the signals hold. A signal that never raised anything holds nothing, so no state can hold itself.
//   - Growth of an OOM counter holds critical for oomHold.
//   - A signal that can no longer be read holds what it held for the staleness limit, then it is forgotten: neither does
//     a failing file end the pressure it showed, nor can it keep pressure up for ever.
type pressureState struct {
	previous Severity // level of the sample before
	measured bool     // the signal of the last step was read then, not held
	held     map[string]held
	oom      counter
	oomKills counter
}

// held is what a signal holds.
type held struct {
	severity Severity
	value    float64   // as last read
	at       time.Time // when it was last read
	until    time.Time // it does not end before; zero for signals with a recovery value
}

// oomHold is how long an OOM kill sheds. Those it refuses are sent away for as long (see Pressure.RetryAfter).
const oomHold = 10 * time.Second

// counter turns an ever-growing count into its growth. The first sight of a cgroup is the baseline: what happened before
// is no news. Going backwards is a reset (the cgroup was made anew), and a baseline too.
type counter struct {
	cgroup string
	value  int64
	seen   bool
}

func (c *counter) growth(cgroup string, value int64) float64 {
	if value < 0 {
		return math.NaN()
	}
	before := *c
	*c = counter{cgroup: cgroup, value: value, seen: true}
	if !before.seen || before.cgroup != cgroup || value < before.value {
		return 0
	}
	return float64(value - before.value)
}

// step takes the next sample, read at now.
func (p *pressureState) step(now time.Time, s sample, settings PressureSettings, memoryRatio float64) Pressure {
	if p.held == nil {
		p.held = make(map[string]held)
	}
	readings := p.readings(s, settings)
	level := Normal
	for _, r := range readings {
		level = max(level, r.level())
	}
	confirmed := min(level, p.previous)
	p.previous = level
	pressure := Pressure{Healthy: !(s.memory >= memoryRatio)}
	p.measured = false
	for _, r := range readings {
		h := p.hold(now, r, confirmed, staleAfter(settings.Interval))
		p.held[r.signal] = h
		if h.severity <= pressure.Severity {
			continue
		}
		pressure.Severity, pressure.Signal, pressure.Value = h.severity, r.signal, h.value
		pressure.Threshold, pressure.until = r.threshold(h.severity), h.until
		if r.immediate { // the first sample at or after until ends it
			pressure.until = h.until.Add(settings.Interval)
		}
		p.measured = !r.immediate && !math.IsNaN(r.value)
		if r.level() < h.severity && !r.immediate { // held: what it has to fall to
			pressure.Threshold = r.recoveryAtMost
		}
	}
	return pressure
}

// hold is what a signal holds after its next reading.
func (p *pressureState) hold(now time.Time, r reading, confirmed Severity, stale time.Duration) held {
	h := p.held[r.signal]
	switch {
	case math.IsNaN(r.value):
		if now.Sub(h.at) > stale && !now.Before(h.until) {
			return held{}
		}
		return h
	case r.immediate:
		if r.level() > Normal {
			return held{severity: r.level(), value: r.value, at: now, until: now.Add(oomHold)}
		}
		if !now.Before(h.until) {
			return held{at: now}
		}
		h.at = now
		return h
	}
	h.value, h.at = r.value, now
	switch level := r.level(); {
	case min(level, confirmed) > h.severity:
		h.severity = min(level, confirmed)
	case level >= h.severity:
	case r.value > r.recoveryAtMost:
		h.severity = min(h.severity, High)
	default:
		h.severity = Normal
	}
	return h
}

func (p *pressureState) readings(s sample, settings PressureSettings) [6]reading {
	ratio := func(signal string, value float64) reading {
		return reading{signal: signal, value: value, high: settings.High, critical: settings.Critical, recoveryAtMost: settings.Recovery}
	}
	psi := func(signal string, value float64) reading {
		if settings.PSI.Disabled {
			value = math.NaN()
		}
		return reading{signal: signal, value: value, high: settings.PSI.High, critical: settings.PSI.Critical, recoveryAtMost: settings.PSI.Recovery}
	}
	oom := func(signal string, c *counter, value int64) reading {
		return reading{signal: signal, value: c.growth(s.cgroup, value), high: 1, critical: 1, immediate: true}
	}
	return [6]reading{
		oom(SignalOOMKill, &p.oomKills, s.oomKills),
		oom(SignalOOM, &p.oom, s.oom),
		ratio(SignalMemoryRatio, s.memory),
		ratio(SignalMemoryHigh, s.high),
		psi(SignalPSIFull, s.stall.full),
		psi(SignalPSISome, s.stall.some),
	}
}

// staleAfter is the age from which a sample says nothing any more: five intervals missed, and never less than three
// seconds, which a stopped or starved process easily loses.
func staleAfter(interval time.Duration) time.Duration { return max(5*interval, 3*time.Second) }
