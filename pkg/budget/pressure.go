package budget

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
	SignalStale       = "stale"
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
//   - The level of a sample is that of its highest signal: >= critical, >= high, else normal.
//   - The severity rises to what two samples in a row reached; growth of an OOM counter is critical at once.
//   - It never falls by degrees. One sample in which every signal is at or under its recovery value makes it normal;
//     anything between keeps it.
//   - A signal that can no longer be read holds what it held for the staleness limit, then it is forgotten: neither does
//     a failing file end the pressure it showed, nor can it keep pressure up for ever.
type pressureState struct {
	severity Severity
	previous Severity // level of the sample before
	last     map[string]lastReading
	oom      counter
	oomKills counter
}

type lastReading struct {
	value float64
	at    time.Time
}

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
	readings := p.readings(s, settings)
	top := highest(readings)
	level := top.level()
	confirmed := min(level, p.previous)
	if top.immediate {
		confirmed = level
	}
	p.previous = level
	blocking, blocked := p.blocking(now, readings, staleAfter(settings.Interval))
	switch {
	case confirmed > p.severity:
		p.severity = confirmed
	case !blocked:
		p.severity = Normal
	}
	pressure := Pressure{Severity: p.severity, Healthy: !(s.memory >= memoryRatio)}
	switch {
	case p.severity == Normal:
	case level >= p.severity:
		pressure.Signal, pressure.Value, pressure.Threshold = top.signal, top.value, top.threshold(p.severity)
	default: // held: what is still over its recovery value is the cause
		pressure.Signal, pressure.Value, pressure.Threshold = blocking.signal, blocking.value, blocking.recoveryAtMost
	}
	return pressure
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

// highest returns the reading of the highest level; among equals the first.
func highest(readings [6]reading) reading {
	top := readings[0]
	for _, r := range readings[1:] {
		if r.level() > top.level() {
			top = r
		}
	}
	return top
}

// blocking returns the first signal that is over its recovery value, or was when it was last read.
func (p *pressureState) blocking(now time.Time, readings [6]reading, stale time.Duration) (reading, bool) {
	if p.last == nil {
		p.last = make(map[string]lastReading, len(readings))
	}
	var first reading
	found := false
	for _, r := range readings {
		if math.IsNaN(r.value) {
			last, known := p.last[r.signal]
			if !known || now.Sub(last.at) > stale {
				continue
			}
			r.value = last.value
		} else {
			p.last[r.signal] = lastReading{value: r.value, at: now}
		}
		if !found && r.value > r.recoveryAtMost {
			first, found = r, true
		}
	}
	return first, found
}

// staleAfter is the age from which a sample says nothing any more: five intervals missed, and never less than three
// seconds, which a stopped or starved process easily loses.
func staleAfter(interval time.Duration) time.Duration { return max(5*interval, 3*time.Second) }
