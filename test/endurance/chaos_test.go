//go:build endurance

package endurance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/stack"
)

// chaos is a rig under load and what can be done to it.
type chaos struct {
	*rig
	random *rand.Rand
	guest  *guest // the protected process, in a cgroup of its own; nil where there is none
	disk   string // where the sidecar's log goes; empty where no file system can be mounted
	load   *load
}

// disturbance is something that happens. It returns when it is over: the part runs again.
type disturbance struct {
	name string
	do   func(c *chaos, ctx context.Context) error
}

var errNotHere = errors.New("not possible on this machine")

var disturbances = []disturbance{
	{"sidecar: kill -9", func(c *chaos, ctx context.Context) error {
		c.sidecar.Kill()
		c.pause(ctx, 500)
		return c.sidecar.Restart(ctx)
	}},
	{"sidecar: SIGTERM, restart", func(c *chaos, ctx context.Context) error {
		if err := c.sidecar.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		<-c.sidecar.Done()
		return c.sidecar.Restart(ctx)
	}},
	{"sidecar: SIGSTOP", func(c *chaos, ctx context.Context) error {
		return c.freeze(ctx, c.sidecar.Process, 3000)
	}},
	{"sidecar: a tenth of the processor", func(c *chaos, ctx context.Context) error {
		for range 30 {
			if err := c.sidecar.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			sleep(ctx, 90*time.Millisecond)
			if err := c.sidecar.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			sleep(ctx, 10*time.Millisecond)
		}
		return nil
	}},
	{"sidecar: no descriptor left", (*chaos).exhaustDescriptors},
	{"sidecar: clock 100 days on, restart", (*chaos).jumpClock},
	{"sidecar: disk full", (*chaos).fillDisk},
	{"protected process: memory at its limit", (*chaos).fillMemory},
	{"Envoy: kill -9", func(c *chaos, ctx context.Context) error {
		_ = c.envoy.Signal(syscall.SIGKILL) // it runs
		<-c.envoy.Done()
		c.envoy.Stop()
		return c.startEnvoy(ctx)
	}},
	{"Envoy: SIGSTOP", func(c *chaos, ctx context.Context) error { return c.freeze(ctx, c.envoy.Process, 3000) }},
	{"Redis: kill -9", func(c *chaos, ctx context.Context) error {
		c.redis.Kill()
		c.pause(ctx, 2000)
		return c.redis.Restart(ctx)
	}},
	{"Redis: SIGSTOP", func(c *chaos, ctx context.Context) error {
		if err := c.redis.Freeze(); err != nil {
			return err
		}
		c.pause(ctx, 3000)
		return c.redis.Thaw()
	}},
	{"upstream: restart", func(c *chaos, ctx context.Context) error {
		return c.judge.restart(time.Duration(c.random.IntN(1000)) * time.Millisecond)
	}},
	{"clients: 300 that trickle", (*chaos).trickle},
	{"clients: 100 that do not read", (*chaos).unread},
}

// pause lasts up to so many milliseconds.
func (c *chaos) pause(ctx context.Context, ms int) {
	sleep(ctx, time.Duration(c.random.IntN(ms))*time.Millisecond)
}

func (c *chaos) freeze(ctx context.Context, p *stack.Process, ms int) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	c.pause(ctx, ms)
	return p.Signal(syscall.SIGCONT)
}

// exhaustDescriptors takes the sidecar's free descriptors away for a while, in which clients want new connections.
func (c *chaos) exhaustDescriptors(ctx context.Context) error {
	pid := c.sidecar.PID()
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)), Max: was.Max}, nil); err != nil {
		return err
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for _, address := range []string{c.sidecar.Config.Listen.GRPC, c.sidecar.Config.Listen.API} {
				conn, err := net.DialTimeout("tcp", address, time.Second)
				if err == nil {
					sleep(ctx, 2*time.Second)
					conn.Close()
				}
			}
		})
	}
	all.Wait()
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)
}

// jumpClock restarts the sidecar with another monotonic clock than that of everything else.
func (c *chaos) jumpClock(ctx context.Context) error {
	if exec.Command("unshare", "--time", "--monotonic", "8640000", "true").Run() != nil {
		return errNotHere
	}
	wrapper := filepath.Join(c.dir, "later")
	if err := os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\nexec unshare --time --monotonic 8640000 --boottime 8640000 %s \"$@\"\n", sidecarBinary), 0o755); err != nil {
		return err
	}
	c.sidecar.Stop()
	later, err := stack.StartSidecar(ctx, stack.SidecarOptions{Binary: wrapper, Config: c.config, Log: c.logFile()})
	if err == nil {
		c.sidecar = later
	}
	return err
}

func (c *chaos) logFile() string {
	if c.disk == "" {
		return ""
	}
	return filepath.Join(c.disk, "log")
}

// fillDisk fills the file system that the sidecar logs to.
func (c *chaos) fillDisk(ctx context.Context) error {
	if c.disk == "" {
		return errNotHere
	}
	ballast := filepath.Join(c.disk, "ballast")
	err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("fill the disk: %w", err)
	}
	sleep(ctx, 3*time.Second)
	return errors.Join(os.Remove(ballast), os.Truncate(c.logFile(), 0))
}

// fillMemory has the protected process use nearly all that it may, until requests are refused for it.
func (c *chaos) fillMemory(ctx context.Context) error {
	if c.guest == nil {
		return errNotHere
	}
	if err := c.guest.use(guestLimit * 94 / 100); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); !c.load.saw("resource_pressure"); {
		if time.Now().After(end) {
			return errors.Join(errors.New("nothing is refused for resource_pressure"), c.guest.use(guestLimit/4))
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return c.guest.use(guestLimit / 4)
}

// saw reports whether a request has been answered so.
func (l *load) saw(reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for what := range l.counts {
		if strings.HasSuffix(what, ": "+reason) {
			return true
		}
	}
	return false
}

// trickle opens connections that send a byte now and then: of their headers, of their body.
func (c *chaos) trickle(ctx context.Context) error {
	return c.raw(ctx, 300, func(conn net.Conn, i int) {
		text := "GET /slow HTTP/1.1\r\nHost: t\r\nX-Long: "
		if i%2 == 0 {
			text = "POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n"
		}
		for _, err := io.WriteString(conn, text); err == nil && sleep(ctx, 200*time.Millisecond); {
			_, err = conn.Write([]byte("x"))
		}
	})
}

// unread opens connections that ask for streams and do not read them.
func (c *chaos) unread(ctx context.Context) error {
	return c.raw(ctx, 100, func(conn net.Conn, _ int) {
		_, _ = io.WriteString(conn, "GET /stream?ms=10&n=100000 HTTP/1.1\r\nHost: t\r\n\r\n") // the end of the connection tells
		sleep(ctx, time.Minute)
	})
}

// raw has n clients for 5 s.
func (c *chaos) raw(ctx context.Context, n int, client func(conn net.Conn, i int)) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range n {
		conn, err := net.DialTimeout("tcp", c.listen, 5*time.Second)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		all.Go(func() { client(conn, i) })
	}
	return nil
}

// guestLimit is the memory limit of the protected process.
const guestLimit = 128 << 20

// guest is the protected process. It uses as much memory as its lines of input say.
type guest struct {
	pid int
	in  io.Writer
	out *bufio.Reader
}

const guestScript = `
import sys
held = []
for line in sys.stdin:
    held.clear()
    with open("/proc/self/status") as f:
        own = next(int(l.split()[1]) << 10 for l in f if l.startswith("RssAnon:"))
    memory = bytearray(max(0, int(line) - own))
    for i in range(0, len(memory), 4096):
        memory[i] = 1
    held.append(memory)
    print("done", flush=True)
`

// newGuest returns nil where no memory cgroup can be made.
func newGuest(t *testing.T) *guest {
	t.Helper()
	for root, limit := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		dir := filepath.Join(root, "headgate-chaos-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(guestLimit)), 0o644) != nil {
			os.Remove(dir)
			continue
		}
		child := exec.Command("python3", "-c", guestScript)
		in, inErr := child.StdinPipe()
		out, outErr := child.StdoutPipe()
		if err := errors.Join(inErr, outErr, child.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = child.Process.Kill()
			_ = child.Wait()
			for range 50 {
				if os.Remove(dir) == nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(child.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
		return &guest{child.Process.Pid, in, bufio.NewReader(out)}
	}
	return nil
}

func (g *guest) use(bytes int) error {
	if _, err := fmt.Fprintln(g.in, bytes); err != nil {
		return err
	}
	_, err := g.out.ReadString('\n')
	return err
}

// newDisk mounts a small file system; it returns "" where it may not.
func newDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if unix.Mount("none", dir, "tmpfs", 0, "size=32m") != nil {
		return ""
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestChaos: whatever happens under load, service is back within 5 s of its end, no request arrives twice, no connection has
// two owners, and when the load ends nothing is left and nothing has grown.
func TestChaos(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("CHAOS_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64N(1_000_000)
	}
	rounds, err := strconv.Atoi(os.Getenv("CHAOS"))
	if err != nil {
		rounds = 2 * len(disturbances)
	}
	fmt.Printf("CHAOS_SEED=%d CHAOS=%d\n", seed, rounds)
	c := &chaos{random: rand.New(rand.NewPCG(seed, 0)), guest: newGuest(t), disk: newDisk(t)}
	o := rigOptions{log: c.logFile()}
	if c.guest != nil {
		o.protected = c.guest.pid
	}
	c.rig = begin(t, o)
	t.Cleanup(func() { c.sidecar.Stop() }) // the one of now
	c.round(t, disturbance{"nothing", func(*chaos, context.Context) error { return nil }}, nil)
	base, err := c.vitals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []int
	for len(order) < rounds {
		order = append(order, c.random.Perm(len(disturbances))...)
	}
	fmt.Printf("\n%-40s %8s %6s %11s %12s  %s\n", "what happened", "back", "left", "goroutines", "descriptors", "")
	for _, i := range order[:rounds] {
		c.round(t, disturbances[i], &base)
	}
	c.judge.mu.Lock()
	fenced := c.judge.fenced
	c.judge.mu.Unlock()
	fmt.Printf("the upstream served %d, refused %d of an older owner, found %d faults: %v\n", c.judge.served.Load(), fenced, len(c.judge.verdict()), c.judge.verdict())
	if faults := c.judge.verdict(); len(faults) > 0 {
		t.Errorf("the upstream found %v", faults)
	}
}

// round disturbs once under load.
func (c *chaos) round(t *testing.T, d disturbance, base *vitals) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c.load = newLoad(c.listen)
	loading, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.load.drive(loading, 40, connections)
	}()
	sleep(ctx, 1500*time.Millisecond)
	happened := d.do(c, ctx)
	back, err := c.serves(ctx, 30*time.Second)
	sleep(ctx, 1500*time.Millisecond)
	stop()
	<-done
	if errors.Is(happened, errNotHere) {
		fmt.Printf("%-40s %s\n", d.name, "MISSED: "+happened.Error())
		return
	}
	left, idleErr := c.idle(ctx)
	v, vitalsErr := c.settled(ctx, base)
	problem := errors.Join(happened, err, idleErr, vitalsErr)
	if back > 5*time.Second {
		problem = errors.Join(problem, fmt.Errorf("back after %v, want 5 s", back))
	}
	if len(left) > 0 {
		problem = errors.Join(problem, fmt.Errorf("left: %v", left))
	}
	verdict := "ok"
	if problem != nil {
		verdict = "FAILED: " + problem.Error()
		t.Errorf("%s: %v", d.name, problem)
	}
	if base != nil {
		fmt.Printf("%-40s %8s %6d %11.0f %12.0f  %s\n", d.name, back.Round(time.Millisecond), len(left), v.Goroutines, v.Descriptors, verdict)
	}
}

// settled waits until goroutines and descriptors are as they were, or nearly so: pools differ by a few connections.
func (c *chaos) settled(ctx context.Context, base *vitals) (v vitals, err error) {
	for end := time.Now().Add(15 * time.Second); ; {
		v, err = c.vitals(ctx)
		if base == nil || err == nil && v.Goroutines <= base.Goroutines+40 && v.Descriptors <= base.Descriptors+15 {
			return v, err
		}
		if time.Now().After(end) {
			return v, errors.Join(err, fmt.Errorf("%.0f goroutines and %.0f descriptors, want about %.0f and %.0f", v.Goroutines, v.Descriptors, base.Goroutines, base.Descriptors))
		}
		sleep(ctx, 200*time.Millisecond)
	}
}
