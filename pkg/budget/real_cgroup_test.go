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

// holdMemory is what this test binary does as a child: it fills memory and page cache as its environment says, prints a line
// and waits for its end.
const holdMemory = "HEADGATE_TEST_HOLD_MEMORY"

func TestMain(m *testing.M) {
	if what := os.Getenv(holdMemory); what != "" {
		hold(what)
		return
	}
	os.Exit(m.Run())
}

func hold(what string) {
	var anonymous, cached int
	_, _ = fmt.Sscanf(what, "%d %d", &anonymous, &cached)
	in := bufio.NewReader(os.Stdin)
	if line, _ := in.ReadString('\n'); line == "" { // once it is in its cgroup
		return
	}
	memory := make([]byte, anonymous)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	file, err := os.CreateTemp(os.Getenv("HEADGATE_TEST_DIR"), "cache")
	if err == nil {
		block := make([]byte, 1<<20)
		for range cached >> 20 {
			_, _ = file.Write(block)
		}
		_ = file.Sync() // clean pages
	}
	fmt.Println("ready")
	_, _ = in.ReadString('\n')
	if len(memory) > 0 && memory[0] == 0 {
		fmt.Println()
	}
}

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
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", holdMemory, anonymous, cached), "HEADGATE_TEST_DIR="+t.TempDir())
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
