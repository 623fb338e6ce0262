package manifests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// TestLifecycleScript runs the script of Envoy's probes and its stop against a real Envoy with a request in flight.
func TestLifecycleScript(t *testing.T) {
	held, release := make(chan struct{}), make(chan struct{})
	upstream := http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/status/200" {
			return
		}
		close(held)
		<-release
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = upstream.Serve(listener) }()
	t.Cleanup(func() { _ = upstream.Close() })
	socket := filepath.Join(t.TempDir(), "extproc.sock")
	sidecar := startHealth(t, socket)
	envoy := startEnvoy(t, listener.Addr().String(), socket)
	mark := filepath.Join(t.TempDir(), "sidecar-away")

	lifecycle := func(args ...string) error {
		c := exec.CommandContext(t.Context(), "bash", append([]string{k8s + "base/lifecycle.sh"}, args...)...)
		c.Env = append(os.Environ(), "ENVOY_ADMIN="+strings.Replace(envoy.Admin, ":", "/", 1), "DRAIN_LEAST=0", "SIDECAR_AWAY="+mark)
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	waitFor(t, "ready while Envoy and the sidecar serve", func() error { return lifecycle("ready") })

	sidecar.Stop()
	waitFor(t, "not ready without the sidecar", func() error {
		if err := lifecycle("ready"); err == nil || !strings.Contains(err.Error(), "the sidecar does not answer") {
			return fmt.Errorf("ready says %w", err)
		}
		return nil
	})
	if closes := closesConnection(t, envoy.URL()+"/status/200"); !closes {
		t.Error("answers keep their connections while the sidecar is away, want them closed, so that clients go to other pods")
	}
	startHealth(t, socket)
	waitFor(t, "ready with the sidecar again", func() error { return lifecycle("ready") })
	if closes := closesConnection(t, envoy.URL()+"/status/200"); closes {
		t.Error("answers close their connections after the sidecar came back")
	}

	answered := make(chan error, 1)
	go func() {
		r, err := http.Get(envoy.URL())
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
		answered <- err
	}()
	<-held

	began := time.Now()
	if err := lifecycle("drain", "2"); err != nil {
		t.Fatalf("drain: %v", err)
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("the drain took %v with a request in flight, want what it was allowed: up to 2 s", took)
	}
	if err := lifecycle("ready"); err == nil {
		t.Error("still ready after the drain began")
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	began = time.Now()
	if err := lifecycle("drain", "60"); err != nil {
		t.Fatalf("drain: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the drain took %v with nothing in flight", took)
	}
}

// startHealth serves gRPC health as the sidecar does, and nothing else.
func startHealth(t *testing.T, socket string) *grpc.Server {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h := health.NewServer()
	h.SetServingStatus("envoy.service.ext_proc.v3.ExternalProcessor", healthpb.HealthCheckResponse_SERVING)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s
}

// waitFor waits until check has no error.
func waitFor(t *testing.T, what string, check func() error) {
	t.Helper()
	err := check()
	for began := time.Now(); err != nil && time.Since(began) < 30*time.Second; err = check() {
		time.Sleep(200 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// closesConnection reports whether the answer to a request ends its connection.
func closesConnection(t *testing.T, url string) bool {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.Close
}

// startEnvoy starts an Envoy that lets everything through to the upstream: nobody answers for the processor.
func startEnvoy(t *testing.T, upstream, processor string) *stack.Envoy {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	binary, err := stack.Finder{Root: filepath.Join("..", "..")}.Envoy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Listen.GRPC = "unix://" + processor
	bootstrap, err := stack.NewBootstrap(c, envoyconf.Options{FailOpen: true, Upstream: upstream})
	if err != nil {
		t.Fatal(err)
	}
	bootstrap.FreePorts()
	text, err := bootstrap.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Stop)
	return envoy
}

// TestNameProcessScript runs the script that tells the sidecar the number of the process it protects.
func TestNameProcessScript(t *testing.T) {
	script := k8s + "overlays/shared-process/name-process.sh"
	settings := k8s + "overlays/shared-process/headgate.yaml"
	copied := filepath.Join(t.TempDir(), "headgate.yaml")
	pid := func() int {
		t.Helper()
		c, err := config.Load(copied, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Bytes.Budget.CgroupPID
	}
	if out, err := exec.CommandContext(t.Context(), "sh", script, settings, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := pid(); got != 0 {
		t.Errorf("before the process runs cgroupPid is %d, want 0", got)
	}
	out, err := exec.CommandContext(t.Context(), "sh", script, settings, copied, "sh", "-c", `echo "$$ $1"; exit 7`, "sh", "an argument").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the command's end: %v, want exit status 7", err)
	}
	if want := strconv.Itoa(pid()) + " an argument\n"; string(out) != want {
		t.Errorf("the process says %q, the settings %q", out, want)
	}
	left, err := os.ReadDir(filepath.Dir(copied))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v (%v), want the copy alone", left, err)
	}
}
