package budget

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// TestResizeBelowWhatIsReserved: a limit that shrinks below what is reserved takes nothing back and admits nothing until
// enough has drained.
func TestResizeBelowWhatIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.DefaultBudgetSettings()
		s.CgroupRoot = t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(s.CgroupRoot, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/self/cgroup", "0::/\n")
		write("sys/fs/cgroup/memory.max", "1073741824\n")
		write("sys/fs/cgroup/memory.current", "104857600\n")
		write("sys/fs/cgroup/memory.stat", "inactive_file 0\nactive_file 0\n")
		noEnvironment := func(string) string { return "" }
		c := New(DefaultSettings(), memory.ReadCeiling(s, noEnvironment).Budget(s), nil)
		monitor := memory.NewMonitor(memory.DefaultPressureSettings(), s, .75, slog.New(slog.DiscardHandler))
		monitor.OnBudget(c.SetBudget)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go monitor.Run(ctx)
		synctest.Wait()

		hold, _, _ := c.Acquire(Request{Bytes: 20 * mib})
		if hold == nil {
			t.Fatalf("20 MiB of 32 MiB were not admitted: %+v", c.Snapshot())
		}
		write("sys/fs/cgroup/memory.max", "536870912\n")
		time.Sleep(s.Refresh)
		synctest.Wait()
		if s := c.Snapshot(); s.InflightBytes != 20*mib || s.MaxInflightBytes != 16*mib || s.EffectiveCeiling != 512*mib {
			t.Errorf("after the resize: %+v, want 20 MiB in flight of 16 MiB", s)
		}
		if h, _, _ := c.Acquire(Request{Bytes: 1}); h != nil {
			t.Error("a byte was admitted while more than the budget is in flight")
		}
		hold.Release()
		next, _, refusal := c.Acquire(Request{Bytes: 16 * mib})
		if next == nil {
			t.Fatalf("the whole new budget was not admitted once it had drained: %+v", refusal)
		}
		next.Release()
	})
}
