package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestDemoPrintsLinesThatWork runs `make run` on free ports and every line it prints, in a shell, in order.
func TestDemoPrintsLinesThatWork(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	ports, err := stack.FreePorts(6)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var progress bytes.Buffer
	go func() {
		ended <- stack.Run(ctx, stack.RunOptions{
			Root: root, Stdout: out, Stderr: &progress, Sidecar: sidecarBinary, Listen: ports[0], Admin: ports[1], Upstream: ports[2],
			Environ: append([]string{"CONFIG=", "HEADGATE_LISTEN_GRPC=" + ports[3], "HEADGATE_LISTEN_ADMIN=" + ports[4], "HEADGATE_LISTEN_API=" + ports[5]}, os.Environ()...),
		})
	}()
	text := func() string {
		b, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(text(), "Ctrl-C stops everything."); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("Run ended with %v before it was ready\n%s", err, text())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("Run is not ready after a minute:\n%s", text())
		}
	}
	runLines(t, text())
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run ended with %v, want nil after a stop\n%s", err, progress.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run did not end within 20 s")
	}
	if log := text(); !strings.Contains(log, "POST /v1/chat/completions status=200") {
		t.Errorf("no access log line for the first request:\n%s", log)
	}
}

// runLines runs the printed commands in one shell and checks what each answers.
func runLines(t *testing.T, text string) {
	t.Helper()
	var script []string
	for _, line := range lines(text) {
		if command, ok := strings.CutPrefix(line, "  "); ok && strings.Contains(command, "curl ") || strings.Contains(line, "OWNER=vlo_") {
			script = append(script, strings.TrimPrefix(line, "  ")+"; echo; echo ===")
		}
	}
	shell := exec.CommandContext(t.Context(), "sh", "-c", strings.Join(script, "\n"))
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("the lines failed: %v\n%s", err, out)
	}
	answers := strings.Split(string(out), "\n===\n")
	want := []string{
		"HTTP/1.1 200", "data: [DONE]", "HTTP/1.1 413", "HTTP/1.1 413", `"chatAdmission"`, // the five
		"", "generation 1", "HTTP/1.1 200", "LEASE_FENCE_STALE", "RELEASED",
	}
	if len(script) != len(want) {
		t.Fatalf("%d lines to try, want %d:\n%s", len(script), len(want), strings.Join(script, "\n"))
	}
	for i, part := range want {
		if !strings.Contains(answers[i], part) {
			t.Errorf("line %d answered %q, want it to contain %q\n%s", i, answers[i], part, script[i])
		}
	}
}
