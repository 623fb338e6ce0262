package memory

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Monitor samples memory pressure and reads the memory ceiling again, each on a ticker of its own: nothing that requests
// do, or are refused, can stop it.
//
// When samples stop coming (the sampler hangs in a read, or the machine is too starved to run it) what was last seen is
// no evidence any more, and Pressure says High with the signal "stale", whatever it was before. Critical would refuse
// everything with nothing left to end it, and normal would be a claim that nobody checked; under high pressure requests
// are still served, within a byte budget that holds without any signal. Staleness starts after five intervals, at least
// three seconds. Signals that fail to be read while the sampler lives are another matter: see pressureState.
type Monitor struct {
	log *slog.Logger
	env func(string) string

	mu         sync.Mutex
	settings   monitorSettings
	onBudget   []func(Budget)
	onPressure []func(Pressure)

	trickle *trickle
	changed chan struct{} // Configure wakes Run
	latest  atomic.Pointer[observation]
}

type monitorSettings struct {
	pressure    PressureSettings
	budget      BudgetSettings
	memoryRatio float64
}

// observation is immutable once stored.
type observation struct {
	pressure Pressure
	sample   sample
	at       time.Time
	stale    time.Duration
}

// NewMonitor returns a monitor that does nothing until Run. memoryRatio is the ratio from which memory is not healthy.
// The settings must be valid.
func NewMonitor(s PressureSettings, b BudgetSettings, memoryRatio float64, log *slog.Logger) *Monitor {
	return &Monitor{
		log:      log,
		env:      os.Getenv,
		settings: monitorSettings{pressure: s, budget: b, memoryRatio: memoryRatio},
		trickle:  newTrickle(),
		changed:  make(chan struct{}, 1),
	}
}

// OnBudget registers a callback for the budget: the first one that Run derives, and each that differs from the one
// before. Callbacks run on Run's goroutine, one after the other, and must not block. Register before Run.
func (m *Monitor) OnBudget(f func(Budget)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onBudget = append(m.onBudget, f)
}

// OnPressure registers a callback that gets the pressure after every sample, changed or not: adaptive limits react to
// each further sample of high pressure. The rules of OnBudget hold. A hanging sampler calls nobody; staleness shows in
// Pressure only.
func (m *Monitor) OnPressure(f func(Pressure)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onPressure = append(m.onPressure, f)
}

// Configure replaces the settings, which must be valid. Run takes them over at once; severity survives.
func (m *Monitor) Configure(s PressureSettings, b BudgetSettings, memoryRatio float64) {
	m.mu.Lock()
	m.settings = monitorSettings{pressure: s, budget: b, memoryRatio: memoryRatio}
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default: // already awake
	}
}

// Pressure is what the last sample showed, or High and "stale" when that is too long ago (Value and Threshold are then
// seconds). Before the first sample and after Run it is normal and healthy. It takes no lock.
func (m *Monitor) Pressure() Pressure {
	o := m.latest.Load()
	if o == nil {
		return Pressure{Healthy: true}
	}
	if age := time.Since(o.at); age > o.stale {
		return Pressure{
			Severity: High, Signal: signalStale, Value: age.Seconds(), Threshold: o.stale.Seconds(), Healthy: true,
		}
	}
	return o.pressure
}

// Shed decides for one request whether the pressure refuses it: never under critical, and then all but a trickle.
func (m *Monitor) Shed() bool { return m.Pressure().Severity >= Critical && !m.trickle.admit() }

// Signals are the figures of the last sample by signal, for metrics: memory ratios, stalls in percent, and the OOM
// counters since the cgroup exists. What could not be read is absent.
func (m *Monitor) Signals() map[string]float64 {
	o := m.latest.Load()
	if o == nil {
		return nil
	}
	s := o.sample
	read := map[string]float64{
		SignalMemoryRatio: s.memory, SignalMemoryHigh: s.high, SignalPSISome: s.stall.some, SignalPSIFull: s.stall.full,
		SignalOOM: float64(s.oom), SignalOOMKill: float64(s.oomKills),
	}
	maps.DeleteFunc(read, func(_ string, value float64) bool { return math.IsNaN(value) || value < 0 })
	return read
}

// Run reads and samples until ctx is done. It is called once.
func (m *Monitor) Run(ctx context.Context) {
	defer m.latest.Store(nil)
	w := watch{m: m}
	w.configure()
	w.readCeiling()
	w.takeSample()
	sample := time.NewTicker(w.pressure.Interval)
	defer sample.Stop()
	refresh := time.NewTicker(w.budget.Refresh)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sample.C:
			w.takeSample()
		case <-refresh.C:
			w.readCeiling()
		case <-m.changed:
			w.configure()
			w.readCeiling()
			sample.Reset(w.pressure.Interval)
			refresh.Reset(w.budget.Refresh)
		}
	}
}

// watch is the state of Run; its goroutine owns it.
type watch struct {
	m *Monitor
	monitorSettings
	onBudget   []func(Budget)
	onPressure []func(Pressure)

	ceiling Ceiling
	failed  string // why a limit could not be read, empty while all can
	blind   string // why the memory in use could not be read, likewise
	found   string // the last line logged about the ceiling
	derived Budget
	state   pressureState
	last    Pressure
}

func (w *watch) configure() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.monitorSettings = w.m.settings
	w.onBudget, w.onPressure = w.m.onBudget, w.m.onPressure
}

// readCeiling reads the limits again. Where one cannot be read, what was known of it stays; everything else, and the
// settings, hold at once.
func (w *watch) readCeiling() {
	w.ceiling = w.ceiling.Again(w.budget, w.m.env)
	budget := w.ceiling.Budget(w.budget)
	w.logUnread(budget)
	found := w.ceiling.String()
	if budget == w.derived && (found == w.found || w.ceiling.Err() != nil) {
		return
	}
	// The line about what was found is logged when it says something new.
	w.m.log.Info("byte budget", "bytes", budget.Bytes, "source", budget.Source, "ceiling", budget.Ceiling,
		"where", budget.Where, "found", found)
	w.found = found
	if budget == w.derived {
		return
	}
	w.derived = budget
	for _, f := range w.onBudget {
		f(budget)
	}
}

// logUnread logs that a limit cannot be read, once for each reason, and that it can be again.
func (w *watch) logUnread(b Budget) {
	failed := ""
	if err := w.ceiling.Err(); err != nil {
		failed = err.Error()
	}
	switch {
	case failed == w.failed:
	case failed == "":
		w.m.log.Info("the memory limit can be read again")
	case w.ceiling.known:
		w.m.log.Warn("the memory limit cannot be read; the last known one stays", "error", failed, "ceiling", b.Ceiling, "source", b.Source)
	default:
		w.m.log.Warn("the memory limit cannot be read, and none is known", "error", failed, "budget", b.Bytes)
	}
	w.failed = failed
}

func (w *watch) takeSample() {
	now := time.Now()
	if o := w.m.latest.Load(); o != nil && now.Sub(o.at) > o.stale {
		w.m.log.Warn("pressure was not sampled for too long", "age", now.Sub(o.at), "limit", o.stale)
	}
	sample := w.ceiling.sample(w.pressure.PSI)
	pressure := w.state.step(now, sample, w.pressure, w.memoryRatio)
	w.m.trickle.observe(pressure, w.state.measured)
	w.m.latest.Store(&observation{pressure: pressure, sample: sample, at: now, stale: staleAfter(w.pressure.Interval)})
	w.logBlind(sample.unread)
	w.logChange(pressure)
	for _, f := range w.onPressure {
		f(pressure)
	}
}

// logBlind logs that the memory in use cannot be read, once for each reason, and that it can be again.
func (w *watch) logBlind(err error) {
	blind := ""
	if err != nil {
		blind = err.Error()
	}
	switch {
	case blind == w.blind:
	case blind == "":
		w.m.log.Info("the memory in use can be read again")
	default:
		w.m.log.Warn("the memory in use cannot be read: its pressure is unknown", "error", blind)
	}
	w.blind = blind
}

// logChange logs a change of severity, and for recovery what the pressure had been.
func (w *watch) logChange(p Pressure) {
	before := w.last
	w.last = p
	switch {
	case p.Severity == before.Severity:
	case p.Severity == Normal:
		w.m.log.Info("memory pressure is normal again", "was", before.Severity.String(), "signal", before.Signal,
			"value", before.Value, "threshold", before.Threshold)
	default:
		w.m.log.Warn("memory pressure changed", "severity", p.Severity.String(), "was", before.Severity.String(),
			"signal", p.Signal, "value", p.Value, "threshold", p.Threshold)
	}
}
