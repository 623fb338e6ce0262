//go:build linux

package memory

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// realLimit is the limit of the cgroups made here.
const realLimit = 128 * mib

// guestScript is a process in such a cgroup. It does what its lines of input say and answers each once that is done. It is no
// child of the race detector's, which multiplies what memory takes.
const guestScript = `
import gc, os, sys

gc.disable()
held, served = [], 0

def anonymous():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) << 10 for l in f if l.startswith("RssAnon:"))

def touched(size):
    memory = bytearray(size)
    for i in range(0, size, 4096):
        memory[i] = 1
    return memory

class Garbage:
    def __init__(self, size):
        self.itself, self.memory = self, touched(size)

for line in sys.stdin:
    command, *args = line.split()
    if command == "use":        # so many bytes of its own, all told
        held.clear()
        held.append(touched(max(0, int(args[0]) - anonymous())))
    elif command == "garbage":  # likewise, but in garbage that only a collection frees
        held.clear()
        Garbage(max(0, int(args[0]) - anonymous()))
    elif command == "serve":    # a request; it collects at every tenth
        served += 1
        if served % 10 == 0:
            gc.collect()
    elif command == "overrun":  # a child that uses more than there is, until it is killed
        child = os.fork()
        if child == 0:
            touched(int(args[0]))
            os._exit(0)
        os.waitpid(child, 0)
    elif command == "cache":    # so many bytes of a file, read and written and clean
        with open(args[1], "wb") as f:
            for _ in range(int(args[0]) >> 20):
                f.write(bytes(1 << 20))
            f.flush()
            os.fsync(f.fileno())
    print("done", flush=True)
`

// guest is the process, and the cgroup it is in.
type guest struct {
	t       *testing.T
	dir     string
	version int
	pid     int
	in      io.Writer
	out     *bufio.Reader
}

// newGuest makes a memory cgroup with a limit and starts a process in it. It skips, and says why, where the machine has no
// memory cgroup to write to.
func newGuest(t *testing.T) *guest {
	t.Helper()
	g := &guest{t: t}
	g.makeCgroup()
	child := exec.Command("python3", "-c", guestScript)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Skipf("no python3 to fill the cgroup with: %v", err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	g.pid, g.in, g.out = child.Process.Pid, in, bufio.NewReader(out)
	g.set("cgroup.procs", g.pid)
	return g
}

func (g *guest) makeCgroup() {
	g.t.Helper()
	for _, parent := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		dir := filepath.Join(parent, "headgate-test-"+strconv.Itoa(os.Getpid())+"-"+strings.ReplaceAll(g.t.Name(), "/", "-"))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		g.t.Cleanup(func() {
			for range 50 {
				if os.Remove(dir) == nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		for version, file := range map[int]string{1: "memory.limit_in_bytes", 2: "memory.max"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
				g.dir, g.version = dir, version
				g.set(file, realLimit)
				// Without swap. Not all kernels have the files.
				_ = os.WriteFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"), []byte(strconv.Itoa(realLimit)), 0o644)
				_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644)
				return
			}
		}
	}
	g.t.Skip("this machine has no memory cgroup, of either version, that can be written to")
}

func (g *guest) set(file string, value int) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(value)), 0o644); err != nil {
		g.t.Skipf("%s cannot be written here: %v", file, err)
	}
}

// must has the process do something.
func (g *guest) must(command string, args ...any) {
	g.t.Helper()
	fmt.Fprintln(g.in, append([]any{command}, args...)...)
	if line, err := g.out.ReadString('\n'); err != nil || line != "done\n" {
		g.t.Fatalf("%s: the process said %q (%v), want done", command, line, err)
	}
}

// use has the process use a share of the limit, in percent.
func (g *guest) use(percent int) { g.must("use", realLimit/100*percent) }

// charged is what the kernel charges the cgroup for, file cache and all.
func (g *guest) charged() int64 {
	name := map[int]string{1: "memory.usage_in_bytes", 2: "memory.current"}[g.version]
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		g.t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// monitored is the product's monitor over a guest. It takes a sample when it is told to, so that what the guest does before is
// in it.
type monitored struct {
	*Monitor
	budget  Budget
	samples chan Pressure
	next    chan struct{}
}

func (g *guest) monitor(change func(*BudgetSettings)) *monitored {
	g.t.Helper()
	pressure, budget := DefaultPressureSettings(), DefaultBudgetSettings()
	pressure.Interval = 50 * time.Millisecond
	pressure.PSI.Disabled = true
	budget.CgroupPID = g.pid
	if change != nil {
		change(&budget)
	}
	m := &monitored{Monitor: NewMonitor(pressure, budget, .75, slog.New(slog.DiscardHandler)), samples: make(chan Pressure), next: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	m.OnBudget(func(b Budget) { m.budget = b })
	m.OnPressure(func(p Pressure) {
		select {
		case m.samples <- p:
			<-m.next
		case <-ctx.Done():
		}
	})
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	g.t.Cleanup(func() {
		stop()
		close(m.next)
		<-done
	})
	<-m.samples
	return m
}

// sample takes the next sample.
func (m *monitored) sample() Pressure {
	m.next <- struct{}{}
	return <-m.samples
}

// within takes samples, n at most, until the pressure has a severity.
func (m *monitored) within(t *testing.T, n int, want Severity) {
	t.Helper()
	var seen []Pressure
	for range n {
		p := m.sample()
		if seen = append(seen, p); p.Severity == want {
			return
		}
	}
	t.Errorf("samples %+v, want %s within %d", seen, want.String(), n)
}

// TestFileCacheOfARealCgroup: file cache at 90 % of the limit, and as much of it as the limit allows, is no pressure; neither
// above memory.high, or v1's soft limit.
func TestFileCacheOfARealCgroup(t *testing.T) {
	for name, c := range map[string]struct{ cached, least int64 }{
		"90 %":                {realLimit / 100 * 88, realLimit / 100 * 88},
		"more than the limit": {realLimit / 4 * 5, realLimit / 100 * 80},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t)
			g.set(map[int]string{1: "memory.soft_limit_in_bytes", 2: "memory.high"}[g.version], realLimit/100*90)
			m := g.monitor(nil)
			g.must("cache", c.cached, filepath.Join(t.TempDir(), "file"))
			if charged := g.charged(); charged < c.least {
				t.Fatalf("cgroup v%d is charged for %d bytes, want %d of file cache among them", g.version, charged, c.least)
			}
			for i := range 5 {
				if p := m.sample(); p.Severity != Normal {
					t.Errorf("cgroup v%d, sample %d: %+v with %d of %d bytes charged, all but little file cache; want normal",
						g.version, i+1, p, g.charged(), realLimit)
				}
			}
		})
	}
}

// TestRuntimeAboveItsHeapLimitInARealCgroup: a runtime that uses more than its heap limit, well inside its cgroup's, is in
// good health; the budget follows the heap limit all the same.
func TestRuntimeAboveItsHeapLimitInARealCgroup(t *testing.T) {
	g := newGuest(t)
	m := g.monitor(func(s *BudgetSettings) { s.RuntimeLimit = bytesOf(64 * mib) })
	g.use(70)
	for i := range 5 {
		if p := m.sample(); p.Severity != Normal {
			t.Errorf("sample %d: %+v at 70 %% of the cgroup's limit, want normal", i+1, p)
		}
	}
	if m.budget.Source != SourceMemoryLimit || m.budget.Ceiling != 64*mib {
		t.Errorf("budget %+v, want that of the heap limit", m.budget)
	}
}

// TestWorkingSetOfARealCgroup: memory that is really in use raises the pressure within two samples and lets it fall within two.
func TestWorkingSetOfARealCgroup(t *testing.T) {
	g := newGuest(t)
	m := g.monitor(nil)
	if m.budget.Source != SourceCgroup || m.budget.Ceiling != realLimit {
		t.Fatalf("budget %+v, want that of the cgroup's %d bytes", m.budget, realLimit)
	}
	for _, step := range []struct {
		percent int
		want    Severity
	}{{50, Normal}, {94, Critical}, {88, High}, {50, Normal}, {94, Critical}, {50, Normal}} {
		g.use(step.percent)
		t.Logf("%d %% used, %d of %d bytes charged", step.percent, g.charged(), realLimit)
		m.within(t, 2, step.want)
	}
}

// TestCollectorInARealCgroup: a process that collects its garbage only as it serves. What critical pressure lets through makes
// it collect, and ends the pressure.
func TestCollectorInARealCgroup(t *testing.T) {
	g := newGuest(t)
	m := g.monitor(nil)
	g.must("garbage", realLimit/100*94)
	m.within(t, 2, Critical)
	shed, served := 0, 0
	for began := time.Now(); m.Pressure().Severity != Normal; {
		if time.Since(began) > time.Minute {
			t.Fatalf("after a minute still %+v: %d served, %d shed", m.Pressure(), served, shed)
		}
		for range 5 { // requests
			time.Sleep(10 * time.Millisecond)
			if m.Shed() {
				shed++
				continue
			}
			served++
			g.must("serve")
		}
		m.sample()
	}
	if served < 10 || shed == 0 {
		t.Errorf("%d served and %d shed, want ten at least served, for the collection, and most shed", served, shed)
	}
	t.Logf("normal after %d served and %d shed", served, shed)
}

// TestKillInARealCgroup: a process that the kernel kills for lack of memory is critical pressure at once, for as long as those who
// are refused are told to stay away.
func TestKillInARealCgroup(t *testing.T) {
	g := newGuest(t)
	m := g.monitor(nil)
	g.must("overrun", 2*realLimit)
	p := m.sample()
	if p.Severity != Critical || p.Signal != SignalOOMKill {
		t.Fatalf("cgroup v%d: %+v after a kill, want critical by %s", g.version, p, SignalOOMKill)
	}
	if after := p.RetryAfter(); after <= leastRetry || after > oomHold+time.Second {
		t.Errorf("refused for %v, want what is left of the %v that the kill counts", after, oomHold)
	}
	shed := 0
	for range 10 {
		if m.Shed() {
			shed++
		}
	}
	if shed < 8 {
		t.Errorf("%d of 10 requests in a row are refused, want all but the one of the trickle", shed)
	}
}
