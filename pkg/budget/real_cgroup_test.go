//go:build linux

package budget

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// holdMemory is a process that, once it is in its cgroup, fills memory and clean page cache, prints a line and waits for its
// end. It is no child of this test binary, since the race detector multiplies what that takes.
const holdMemory = `
import os, sys
anonymous, cached, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.stdin.readline()
memory = bytearray(anonymous)
for i in range(0, anonymous, 4096):
    memory[i] = 1
with open(file, "wb") as f:
    for _ in range(cached >> 20):
        f.write(bytes(1 << 20))
    f.flush()
    os.fsync(f.fileno())
print("ready", flush=True)
sys.stdin.readline()
`

// realCgroup makes a memory cgroup below this process's own, with a limit. It skips, and says why, where the machine has
// none to write to.
func realCgroup(t *testing.T, limit int64) (dir string, version int) {
	t.Helper()
	own, problems := findCgroup("/", 0)
	if own.version == 0 {
		t.Skipf("this machine shows no memory cgroup: %v", problems)
	}
	parent, file := own.levels[len(own.levels)-1], "memory.max"
	if own.version == 1 {
		file = "memory.limit_in_bytes"
	}
	dir = filepath.Join(parent, "headgate-test-"+strconv.Itoa(os.Getpid())+"-"+strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("this machine's memory cgroup v%d cannot be written to: %v", own.version, err)
	}
	t.Cleanup(func() {
		for range 50 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o644); err != nil {
		t.Skipf("no limit can be set in a memory cgroup v%d here: %v", own.version, err)
	}
	return dir, own.version
}

// holdIn starts a process in the cgroup that holds so many bytes of its own and of clean file cache.
func holdIn(t *testing.T, dir string, anonymous, cached int) {
	t.Helper()
	child := exec.Command("python3", "-c", holdMemory, strconv.Itoa(anonymous), strconv.Itoa(cached), filepath.Join(t.TempDir(), "cache"))
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(child.Process.Pid)), 0o644); err != nil {
		t.Skipf("a process cannot be put into a cgroup here: %v", err)
	}
	fmt.Fprintln(in, "go")
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the child said %q (%v), want ready", line, err)
	}
}

// TestPressureOfARealCgroup: what the kernel reports of a real cgroup, in the states that matter.
func TestPressureOfARealCgroup(t *testing.T) {
	const limit = 128 * mib
	for _, c := range []struct {
		name              string
		anonymous, cached int
		want              Severity
	}{
		{"page cache fills 90 %", 8 * mib, 108 * mib, Normal},
		{"half of it is used", 64 * mib, 0, Normal},
		{"93 % of it is used", 119 * mib, 0, Critical},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, version := realCgroup(t, limit)
			holdIn(t, dir, c.anonymous, c.cached)
			ceiling := Ceiling{cgroup: cgroup{version: version, levels: []string{dir}}, levels: []level{{dir: dir, max: limit}}}
			var state pressureState
			var p Pressure
			var s sample
			for i := range 2 {
				s = ceiling.sample(PSISettings{Disabled: true})
				p = state.step(time.Unix(int64(i), 0), s, DefaultPressureSettings(), .75)
			}
			used, err := readUsage(dir, version)
			if err != nil {
				t.Fatal(err)
			}
			if p.Severity != c.want {
				t.Errorf("cgroup v%d: pressure %+v of %+v, used %+v of %d; want %s", version, p, s, used, limit, severityName(c.want))
			}
			if c.cached > 0 && used.current < int64(c.cached) {
				t.Errorf("cgroup v%d: %d bytes in use, want the %d of file cache among them", version, used.current, c.cached)
			}
		})
	}
}
