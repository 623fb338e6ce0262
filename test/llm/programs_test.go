//go:build llm

package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

var root, sidecar string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headgate-llm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if root, err = stack.Root(); err == nil {
		sidecar = filepath.Join(dir, "extproc")
		err = stack.BuildSidecar(context.Background(), root, sidecar)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func python() string { return filepath.Join(root, ".tools/llm/bin/python") }

// program starts a server of others and waits until it answers; it ends with the test.
func program(t *testing.T, ready, path string, args func(port string) []string) (addr string) {
	t.Helper()
	ports, err := stack.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	addr = ports[0]
	_, port, _ := net.SplitHostPort(addr)
	p, err := stack.StartProcess(stack.ProcessOptions{Name: filepath.Base(path), Path: path, Args: args(port), Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatalf("%v (make e2e-llm installs what it needs)", err)
	}
	t.Cleanup(p.Stop)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		response, err := http.Get("http://" + addr + ready)
		if err == nil {
			response.Body.Close()
			return addr
		}
		select {
		case <-p.Done():
			t.Fatal(p.Exited())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer: %v\n%s", path, err, p.Tail())
		}
	}
}

// fastAPI has slots, each for a request whose tokens take pause.
func fastAPI(t *testing.T, slots int, pause time.Duration) string {
	t.Helper()
	return program(t, "/ready", python(), func(port string) []string {
		return []string{filepath.Join(root, "test/llm/server.py"), "--port", port, "--slots", fmt.Sprint(slots), "--pause", fmt.Sprint(pause.Seconds())}
	})
}

func aimock(t *testing.T) string {
	t.Helper()
	return program(t, "/health", "node", func(port string) []string {
		return []string{filepath.Join(root, "test/llm/node/node_modules/@copilotkit/aimock/dist/cli.js"), "-p", port,
			"-f", filepath.Join(root, "test/llm/aimock.json"), "--log-level", "warn"}
	})
}

// start starts Envoy and a sidecar before an upstream. At the end nothing may be left in them.
func start(t *testing.T, upstream, overlay string) *stack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Binary: sidecar, Upstream: upstream, Overlay: overlay})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// wantIdle checks that nothing is in flight, waiting or reserved, and that Envoy has no complaint.
func wantIdle(t *testing.T, s *stack.Stack) {
	t.Helper()
	var busy map[string]float64
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now, err := s.Sidecar.Busy(t.Context()); err != nil {
			t.Error(err)
			return
		} else if busy = now; len(busy) == 0 {
			break
		}
	}
	faults, err := s.Faults(t.Context())
	if len(busy) > 0 || len(faults) > 0 || err != nil {
		t.Errorf("at the end: %v in flight, Envoy counted %v (%v); want nothing", busy, faults, err)
	}
}

// call has the client do something and reads what came of it.
func call(t *testing.T, ask, result any) {
	t.Helper()
	in, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	c := exec.CommandContext(t.Context(), python(), filepath.Join(root, "test/llm/client.py"))
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &out, &errs
	c.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	if err := c.Run(); err != nil {
		t.Fatalf("client: %v\n%s", err, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		t.Fatalf("client printed %q: %v\n%s", out.String(), err, errs.String())
	}
}
