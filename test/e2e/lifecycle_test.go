package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/internal/stack"
)

// TestSIGTERM: not ready at once, new work still served for the drain window, then held exchanges are let go, so that
// their clients notice nothing, and the process ends by itself, long before the grace is over.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "shutdown: {drain: 3s, grace: 30s}"}, expectation{gone: true})
	conn, err := grpc.NewClient("passthrough:"+s.Sidecar.Config.Listen.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	serving := func() healthpb.HealthCheckResponse_ServingStatus {
		got, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "envoy.service.ext_proc.v3.ExternalProcessor"})
		if err != nil {
			t.Errorf("gRPC health: %v", err)
		}
		return got.GetStatus()
	}
	if got := serving(); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("gRPC health is %v before the signal, want SERVING", got)
	}
	var clients sync.WaitGroup
	for i, method := range []string{"GET", "POST", "GET", "POST"} {
		clients.Go(func() {
			if n, err := drips(t.Context(), s, client(t, i > 1), method, 80, 100); n != 80 || err != nil {
				t.Errorf("%s held over the shutdown: %d of 80 events (%v), want all: clients must notice nothing", method, n, err)
			}
		})
	}
	clients.Go(func() { slowUpload(t, s, 8*time.Second) })
	eventually(t, "five exchanges in flight", func() bool { return health(t, s).Exchanges.InFlight == 5 })

	if err := s.Sidecar.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	signalled := time.Now()
	eventually(t, "readiness to end", func() bool {
		_, err := s.Sidecar.Get(t.Context(), "/readyz")
		return err != nil && strings.Contains(err.Error(), "503")
	})
	if got := serving(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("gRPC health is %v after the signal, want NOT_SERVING", got)
	}
	served := 0
	for c := client(t, false); time.Since(signalled) < 2*time.Second; served++ {
		got, err := send(t.Context(), s, c, request{method: "POST", path: "/new", body: strings.NewReader("{}")})
		if err != nil || got.status != 200 {
			t.Fatalf("new work %v after the signal = %d (%v), want 200: the drain window is 3 s", time.Since(signalled), got.status, err)
		}
	}
	if served == 0 {
		t.Error("no new work was served in the drain window")
	}
	ends(t, s, 20*time.Second, "an end by itself after the drain window: everything held was let go")
	if n := s.Upstream.CountsOf("/drip").Active; n != 4 {
		t.Errorf("%d of the long responses still ran when the sidecar had ended, want 4: the test has to be quicker", n)
	}
	clients.Wait()
}

// ends waits for the sidecar to end in good order.
func ends(t *testing.T, s *stack.Stack, within time.Duration, want string) {
	t.Helper()
	select {
	case <-s.Sidecar.Done():
	case <-time.After(within):
		t.Fatalf("the sidecar still runs after %v, want %s", within, want)
	}
	if code := s.Sidecar.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// restart starts a sidecar that has ended anew.
func restart(t *testing.T, s *stack.Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Sidecar.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

// slowUpload sends 1 MiB in pieces over the given time and checks that all of it arrives.
func slowUpload(t *testing.T, s *stack.Stack, takes time.Duration) {
	c, err := openRaw(t.Context(), s)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	const pieces = 32
	head := fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n", mebibyte)
	if _, err := c.Write([]byte(head)); err != nil {
		t.Error(err)
		return
	}
	buffer := make([]byte, mebibyte/pieces)
	for body := noise(mebibyte); ; time.Sleep(takes / pieces) {
		n, end := body.Read(buffer)
		if end != nil {
			break
		}
		if _, err := c.Write(buffer[:n]); err != nil {
			t.Errorf("write to Envoy: %v", err)
			return
		}
	}
	got, err := c.answer("POST")
	passed(t, "an upload over the shutdown", got, err, mebibyte, digest(noise(mebibyte)))
}

// TestGraceEndsWhatCannotBeLetGo: the exit is within the deadline, with code 0, whatever is still held.
func TestGraceEndsWhatCannotBeLetGo(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{
		Overlay: "shutdown: {drain: 100ms, grace: 1500ms}",
		Envoy:   []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error { return b.UseMode(stack.ModeFullDuplex) }},
	}, expectation{gone: true, faults: []string{"streams_failed"}})
	c := dialRaw(t, s)
	c.say(t, "POST /stuck HTTP/1.1\nHost: t\nContent-Length: 1000\n\nhalf of it")
	eventually(t, "the exchange", func() bool { return health(t, s).Exchanges.InFlight == 1 })
	if err := s.Sidecar.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	signalled := time.Now()
	ends(t, s, 15*time.Second, "an end when the grace of 1.5 s is over")
	if took := time.Since(signalled); took < time.Second {
		t.Errorf("ended %v after the signal, want about 1.5 s: the exchange cannot be let go", took)
	}
}

// TestCrashAndRestart: after kill -9 requests fail closed, and a restart serves again, over a stale socket too.
func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	for name, socket := range map[string]bool{"TCP": false, "socket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Socket: socket}, expectation{faults: []string{"streams_failed"}})
			c := client(t, false)
			if got := must(t, s, c, request{method: "POST", body: strings.NewReader("{}")}); got.status != 200 {
				t.Fatalf("before the crash = %d, want 200", got.status)
			}
			held := make(chan response, 1)
			go func() { // held by the sidecar when it dies
				got, err := send(t.Context(), s, client(t, false), request{method: "POST", path: "/held?ms=60000", body: strings.NewReader("{}")})
				if err != nil {
					t.Error(err)
				}
				held <- got
			}()
			eventually(t, "an exchange to be held", func() bool { return s.Upstream.CountsOf("/held").Active == 1 })
			s.Sidecar.Kill()
			if got := <-held; got.status != 503 {
				t.Errorf("what the sidecar held when it died = %d, want 503", got.status)
			}
			if got := must(t, s, c, request{method: "POST", body: strings.NewReader("{}")}); got.status != 503 {
				t.Errorf("without a sidecar = %d, want 503", got.status)
			}
			if path, isSocket := strings.CutPrefix(s.Sidecar.Config.Listen.GRPC, "unix://"); isSocket {
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("the dead process left no socket (%v), so this test shows nothing", err)
				}
			}
			restart(t, s)
			eventually(t, "requests to be served again", func() bool {
				return must(t, s, c, request{method: "POST", body: strings.NewReader("{}")}).status == 200
			})
		})
	}
}

// TestLiveSocketIsNotStolen: a second sidecar on the same socket fails, and the first does not notice.
func TestLiveSocketIsNotStolen(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Socket: true})
	ports, err := stack.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "second.yaml")
	text := fmt.Sprintf("listen: {grpc: %q, admin: %q, api: %q}\n", s.Sidecar.Config.Listen.GRPC, ports[0], ports[1])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, sidecarBinary, "serve", "--config", config).CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "another process serves on") {
		t.Errorf("a second sidecar on a live socket: %v, %s, want a failure that says who has it", err, out)
	}
	for range 20 {
		if got := must(t, s, client(t, false), request{method: "POST", body: strings.NewReader("{}")}); got.status != 200 {
			t.Fatalf("the first sidecar after that = %d, want 200", got.status)
		}
	}
}

// TestReload: a changed file and SIGHUP take effect for what begins then, holds survive, and a bad file changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB, releaseAt: responseEnd}"})
	c := client(t, false)
	var ended atomic.Int64
	var held sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	held.Go(func() {
		_, _ = upload(ctx, s, nil, false, true, request{path: "/held?ms=60000", body: noise(mebibyte), length: mebibyte}) // ends with cancel
		ended.Add(1)
	})
	eventually(t, "a reservation", func() bool { return s.Upstream.CountsOf("/held").Completed == 1 })
	post := func(size int64) int {
		return must(t, s, c, request{method: "POST", path: "/x", body: strings.NewReader(text(size)), length: size}).status
	}
	apply := func(overlay string, done func() bool) {
		t.Helper()
		if err := s.Reconfigure("", overlay); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the reload of "+overlay, done)
	}

	apply("bytes: {hardMaxBody: 100, releaseAt: responseEnd}", func() bool { return health(t, s).Config.Count == 1 })
	if small, big := post(100), post(101); small != 200 || big != 413 {
		t.Errorf("limit of 100 after a reload: 100 bytes = %d, 101 = %d, want 200 and 413", small, big)
	}
	for _, bad := range []string{"bytes: {hardMaxBody: -1}", "bytes: {unknown: 1}", "bytes: {hardMaxBody: 1e}"} {
		failures := health(t, s).Config.Failures
		apply(bad, func() bool { return health(t, s).Config.Failures > failures })
		if small, big := post(100), post(101); small != 200 || big != 413 {
			t.Errorf("after %q: 100 bytes = %d, 101 = %d, want the old limit: 200 and 413", bad, small, big)
		}
	}
	apply("bytes: {hardMaxBody: 0, releaseAt: responseEnd}", func() bool { return health(t, s).Config.Count == 2 })
	if none, one := post(0), post(1); none != 200 || one != 413 {
		t.Errorf("limit of 0: no body = %d, 1 byte = %d, want 200 and 413", none, one)
	}
	if err := s.Sidecar.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if b := health(t, s).ChatAdmission; b.InflightBytes != mebibyte || b.ActiveHeavy != 1 || ended.Load() != 0 {
		t.Errorf("after the reloads %d bytes are reserved by %d requests, want what was held before: 1 MiB by 1", b.InflightBytes, b.ActiveHeavy)
	}
	cancel()
	held.Wait()
	effective, err := s.Sidecar.Get(t.Context(), "/config")
	if err != nil || !strings.Contains(effective, "hardMaxBody: 0") {
		t.Errorf("/config does not show the limit in force (%v):\n%s", err, effective)
	}
}

// TestHealthDocument is what monitoring relies on.
func TestHealthDocument(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 8MiB}}"})
	var document struct {
		ChatAdmission map[string]json.RawMessage `json:"chatAdmission"`
	}
	text, err := s.Sidecar.Get(t.Context(), "/api/monitoring/health")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"activeHeavy", "activeHealthyHeadroom", "waiting", "queuedBytes", "shedTotal", "shedsByReason", "inflightBytes",
		"maxInflightBytes", "budgetSource", "effectiveCeiling", "pressureSeverity", "pressureReason", "countCapEnabled", "lanes"} {
		if _, ok := document.ChatAdmission[field]; !ok {
			t.Errorf("chatAdmission lacks %s: %s", field, text)
		}
	}
	if b := health(t, s).ChatAdmission; b.MaxInflightBytes != 8*mebibyte || b.BudgetSource != "override" {
		t.Errorf("budget %d from %s, want 8 MiB from override", b.MaxInflightBytes, b.BudgetSource)
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if _, err := s.Sidecar.Get(t.Context(), path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
