package stack

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func startShell(t *testing.T, text string, grace time.Duration) *Process {
	t.Helper()
	p, err := StartProcess(ProcessOptions{Name: "shell", Path: "/bin/sh", Args: []string{"-c", text},
		Log: filepath.Join(t.TempDir(), "log"), Grace: grace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	// Given a shell that ignores SIGTERM and has a child of its own.
	p := startShell(t, `trap "" TERM; sleep 60 & echo child $!; wait; sleep 60`, 50*time.Millisecond)
	eventually(t, "the child", func() bool { return strings.Contains(p.Tail(), "child ") })
	began := time.Now()
	p.Stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Stop took %v, want little more than its grace of 50 ms", took)
	}
	eventually(t, "the group to be gone", func() bool { return errors.Is(syscall.Kill(-p.PID(), 0), syscall.ESRCH) })
	p.Stop() // idempotent
}

func TestWaitReadyTellsWhyNot(t *testing.T) {
	t.Parallel()
	never := errors.New("connection refused")
	probe := func(context.Context) error { return never }

	died := startShell(t, "echo no such cluster >&2; exit 7", 0)
	err := died.waitReady(t.Context(), probe)
	if err == nil || !strings.Contains(err.Error(), "shell: exit status 7") || !strings.Contains(err.Error(), "no such cluster") {
		t.Errorf("waitReady of a dead process = %v, want its exit status and its log", err)
	}
	if code := died.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}

	slow := startShell(t, "echo still loading; sleep 60", 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = slow.waitReady(ctx, probe)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, never) || !strings.Contains(err.Error(), "still loading") {
		t.Errorf("waitReady of a slow process = %v, want the deadline, the probe's error and the log", err)
	}
}

// TestFreePortsStayFree: a port that was given out is given to nobody else, and no outgoing connection can take it.
func TestFreePortsStayFree(t *testing.T) {
	t.Parallel()
	ports, err := FreePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	lowest, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range ports {
		_, text, _ := net.SplitHostPort(address)
		port, _ := strconv.Atoi(text)
		if port >= lowest {
			t.Errorf("port %d, want one below %d, where those of connections begin", port, lowest)
		}
		if reservePort(port) {
			t.Errorf("port %d is given out a second time", port)
		}
	}
}
