package memory

import (
	"log/slog"
	"testing"
	"time"
)

func TestSignalsAreWhatTheLastSampleRead(t *testing.T) {
	watchMachine(t, func(w *watched) {
		// given 900 of 1024 MiB in use, and no stall information
		w.use(900)
		w.set("memory.events", "oom 3\noom_kill 1\n")
		w.wait(5 * time.Second)
		// when the signals are asked for
		got := w.Signals()
		// then what can be read is there, and nothing else
		if want := 900.0 / 1024; got[SignalMemoryRatio] != want || got[SignalOOM] != 3 || got[SignalOOMKill] != 1 {
			t.Errorf("signals %v, want memory_ratio %v, oom 3, oom_kill 1", got, want)
		}
		for _, absent := range []string{SignalMemoryHigh, SignalPSISome, SignalPSIFull} {
			if v, ok := got[absent]; ok {
				t.Errorf("%s is %v, want it absent", absent, v)
			}
		}
	})
	if got := NewMonitor(DefaultPressureSettings(), DefaultBudgetSettings(), .75, slog.New(slog.DiscardHandler)).Signals(); len(got) != 0 {
		t.Errorf("before the first sample: %v, want none", got)
	}
}
