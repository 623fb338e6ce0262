package memory

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// watched is a monitor of a fake machine with a v2 cgroup of 1 GiB, in virtual time.
type watched struct {
	*Monitor
	t        *testing.T
	root     string
	log      bytes.Buffer
	budgets  []Budget
	severity []Severity // of every sample
}

func watchMachine(t *testing.T, play func(w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, root: machine(t, map[string]string{"proc/self/cgroup": "0::/\n"})}
		w.set("memory.max", "1073741824\n")
		w.set("memory.stat", noCache)
		w.use(100)
		w.Monitor = NewMonitor(DefaultPressureSettings(), w.budgetSettings(), .75, slog.New(slog.NewTextHandler(&w.log, nil)))
		w.env = noEnv
		w.OnBudget(func(b Budget) { w.budgets = append(w.budgets, b) })
		w.OnPressure(func(p Pressure) { w.severity = append(w.severity, p.Severity) })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		synctest.Wait()
		play(w)
		stop()
		<-done
		if got := w.Pressure(); got != (Pressure{Healthy: true}) {
			t.Errorf("after Run: pressure = %+v, want normal", got)
		}
	})
}

func (w *watched) budgetSettings() BudgetSettings {
	s := DefaultBudgetSettings()
	s.CgroupRoot = w.root
	return s
}

func (w *watched) set(name, text string) {
	w.t.Helper()
	write(w.t, w.root, filepath.Join("sys/fs/cgroup", name), text)
}

// use sets the memory in use, in MiB.
func (w *watched) use(mebibytes int) {
	w.t.Helper()
	w.set("memory.current", map[int]string{100: "104857600", 900: "943718400", 1000: "1048576000"}[mebibytes])
}

func (w *watched) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *watched) expect(severity Severity, signal string) {
	w.t.Helper()
	if got := w.Pressure(); got.Severity != severity || got.Signal != signal {
		w.t.Errorf("pressure = %+v, want severity %d by %q", got, severity, signal)
	}
}

func TestMonitorFollowsPressure(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.expect(Normal, "")
		w.use(1000)
		w.wait(time.Second)
		w.expect(Normal, "")
		w.wait(time.Second)
		w.expect(Critical, SignalMemoryRatio)
		w.use(100)
		w.wait(time.Second)
		w.expect(Normal, "")
		if want := []Severity{Normal, Normal, Critical, Normal}; len(w.severity) != 4 || w.severity[2] != Critical {
			t.Errorf("samples handed on: %v, want %v", w.severity, want)
		}
		log := w.log.String()
		for _, want := range []string{
			"level=WARN msg=\"memory pressure changed\" severity=critical was=normal signal=memory_ratio value=0.9765625 threshold=0.92",
			"level=INFO msg=\"memory pressure is normal again\" was=critical signal=memory_ratio",
		} {
			if strings.Count(log, want) != 1 {
				t.Errorf("the log has %q %d times, want once:\n%s", want, strings.Count(log, want), log)
			}
		}
	})
}

func TestMonitorFollowsTheLimit(t *testing.T) {
	watchMachine(t, func(w *watched) {
		if len(w.budgets) != 1 || w.budgets[0].Bytes != 32*mib || w.budgets[0].Source != SourceCgroup {
			t.Fatalf("budgets %+v, want 32 MiB from the cgroup at the start", w.budgets)
		}
		w.wait(35 * time.Second) // three refreshes that find the same
		w.set("memory.max", "536870912")
		w.wait(10 * time.Second)
		if len(w.budgets) != 2 || w.budgets[1].Bytes != 16*mib || w.budgets[1].Ceiling != 512*mib {
			t.Fatalf("budgets %+v, want 16 MiB of 512 MiB one refresh after the resize", w.budgets)
		}
		w.set("memory.max", "max")
		w.wait(10 * time.Second)
		if len(w.budgets) != 3 || w.budgets[2].Source != SourceHost {
			t.Fatalf("budgets %+v, want the machine's once the limit is gone", w.budgets)
		}
		if lines := strings.Count(w.log.String(), "byte budget"); lines != 3 {
			t.Errorf("%d lines about the budget, want 3, one for each change:\n%s", lines, w.log.String())
		}
	})
}

// A resize moves the pressure too: what filled half of the limit fills all of it.
func TestResizeRaisesPressure(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.set("memory.max", "110000000")
		w.wait(12 * time.Second)
		w.expect(Critical, SignalMemoryRatio)
	})
}

func TestConfigureAppliesAtOnce(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.use(900)
		w.wait(2 * time.Second)
		w.expect(High, SignalMemoryRatio)

		s, b := DefaultPressureSettings(), w.budgetSettings()
		s.High, s.Critical, s.Interval = .96, .97, 100*time.Millisecond
		override := 64.0 * mib
		b.Override = &override
		w.Configure(s, b, .9)
		synctest.Wait()
		if last := w.budgets[len(w.budgets)-1]; last.Source != SourceOverride || last.Bytes != 64*mib {
			t.Errorf("budget = %+v, want the override of 64 MiB", last)
		}
		w.wait(100 * time.Millisecond) // the new interval
		w.expect(High, SignalMemoryRatio)
		if p := w.Pressure(); p.Threshold != .75 || !p.Healthy {
			t.Errorf("pressure = %+v, want healthy, held by the recovery value .75", p)
		}
	})
}

// A sampler that hangs must neither keep critical, with which nothing is served, nor claim that all is well.
func TestStaleSamples(t *testing.T) {
	watchMachine(t, func(w *watched) {
		hang := make(chan struct{})
		w.use(1000)
		w.wait(2 * time.Second)
		w.expect(Critical, SignalMemoryRatio)
		w.use(100)
		w.OnPressure(func(Pressure) { <-hang })
		w.Configure(DefaultPressureSettings(), w.budgetSettings(), .75)
		w.wait(time.Second) // the last sample, whose callback hangs
		w.expect(Normal, "")
		w.wait(5 * time.Second)
		w.expect(Normal, "")
		w.wait(time.Millisecond)
		w.expect(High, signalStale)
		if p := w.Pressure(); p.Value != 5.001 || p.Threshold != 5 || !p.Healthy {
			t.Errorf("pressure = %+v, want 5.001 s over 5 s", p)
		}
		close(hang)
		w.wait(2 * time.Second)
		w.expect(Normal, "")
		if !strings.Contains(w.log.String(), "pressure was not sampled for too long") {
			t.Errorf("the gap was not logged:\n%s", w.log.String())
		}
	})
}

func TestVanishedCgroup(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.use(1000)
		w.wait(2 * time.Second)
		w.expect(Critical, SignalMemoryRatio)
		if err := os.RemoveAll(filepath.Join(w.root, "sys")); err != nil {
			t.Fatal(err)
		}
		w.wait(5 * time.Second)
		w.expect(Critical, SignalMemoryRatio)
		w.wait(time.Second)
		w.expect(Normal, "")
		w.wait(10 * time.Second)
		if last := w.budgets[len(w.budgets)-1]; last.Source != SourceCgroup {
			t.Errorf("budget = %+v, want that of the last known limit", last)
		}
		if !strings.Contains(w.log.String(), "the last known one stays") {
			t.Errorf("the log does not say so:\n%s", w.log.String())
		}
	})
}

func TestPressureBeforeRun(t *testing.T) {
	m := NewMonitor(DefaultPressureSettings(), DefaultBudgetSettings(), .75, slog.New(slog.DiscardHandler))
	if got := m.Pressure(); got != (Pressure{Healthy: true}) {
		t.Errorf("pressure = %+v, want normal and healthy", got)
	}
	m.latest.Store(&observation{pressure: Pressure{Severity: Critical}, at: time.Now(), stale: time.Hour})
	if allocs := testing.AllocsPerRun(100, func() { m.Pressure() }); allocs != 0 || m.Pressure().Severity != Critical {
		t.Errorf("Pressure allocates %v times, want 0", allocs)
	}
}

// TestConfigureWhileTheLimitCannotBeRead: new settings hold at once, over what was last known.
func TestConfigureWhileTheLimitCannotBeRead(t *testing.T) {
	watchMachine(t, func(w *watched) {
		last := func() Budget { return w.budgets[len(w.budgets)-1] }
		w.set("memory.max", loop)
		w.wait(10 * time.Second)
		if got := last(); got.Source != SourceCgroup || got.Bytes != 32*mib {
			t.Errorf("budget %+v while the limit cannot be read, want the last known 32 MiB", got)
		}
		b := w.budgetSettings()
		b.Fraction = .5
		w.Configure(DefaultPressureSettings(), b, .75)
		synctest.Wait()
		if got := last(); got.Source != SourceCgroup || got.Bytes != 64*mib {
			t.Errorf("budget %+v after twice the fraction, want 64 MiB of the last known limit", got)
		}
		override := 20. * mib
		b.Override = &override
		w.Configure(DefaultPressureSettings(), b, .75)
		synctest.Wait()
		if got := last(); got.Source != SourceOverride || got.Bytes != 20*mib {
			t.Errorf("budget %+v after an override, want it", got)
		}
		w.set("memory.max", "536870912")
		w.Configure(DefaultPressureSettings(), w.budgetSettings(), .75)
		synctest.Wait()
		if got := last(); got.Source != SourceCgroup || got.Bytes != 16*mib {
			t.Errorf("budget %+v once it can be read, want 16 MiB", got)
		}
		for text, want := range map[string]int{"the last known one stays": 1, "can be read again": 1} {
			if n := strings.Count(w.log.String(), text); n != want {
				t.Errorf("%d lines with %q, want %d:\n%s", n, text, want, w.log.String())
			}
		}
	})
}

// TestUnreadableUseIsNoPressure: without the file cache's size the raw use says nothing; what was critical is held for the
// staleness limit and no longer, and the log says why.
func TestUnreadableUseIsNoPressure(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.set("memory.stat", loop)
		w.use(1000)
		w.wait(10 * time.Second)
		w.expect(Normal, "")
		if n := strings.Count(w.log.String(), "its pressure is unknown"); n != 1 {
			t.Errorf("%d lines about it, want one:\n%s", n, w.log.String())
		}
		w.set("memory.stat", noCache)
		w.wait(2 * time.Second)
		w.expect(Critical, SignalMemoryRatio)
	})
}

// TestAKillShedsNoLongerThanItSays: whoever is refused because of an OOM kill, and comes back when it was told to, is not
// refused for that kill again.
func TestAKillShedsNoLongerThanItSays(t *testing.T) {
	watchMachine(t, func(w *watched) {
		w.set("memory.events", "oom_kill 0\n")
		w.wait(time.Second)
		w.set("memory.events", "oom_kill 1\n")
		w.wait(time.Second + 300*time.Millisecond)
		var back []time.Time
		for w.Pressure().Severity == Critical && len(back) < 100 {
			after := w.Pressure().RetryAfter()
			if after < 2*time.Second || after > 12*time.Second || after%time.Second != 0 {
				t.Fatalf("come back after %v, want 2 to 12 whole seconds", after)
			}
			back = append(back, time.Now().Add(after))
			w.wait(100 * time.Millisecond)
		}
		w.expect(Normal, "")
		if len(back) < 90 {
			t.Errorf("refused for %d tenths of a second, want about ten seconds", len(back))
		}
		for i, at := range back {
			if early := time.Since(at) - 100*time.Millisecond; early > 0 {
				t.Errorf("the refusal after %d tenths of a second says to come back %v before the kill is over", i, early)
			}
		}
	})
}
