package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/test/bench/load"
)

//go:embed headgate.yaml
var settings string

// enforcing is what the second Headgate has on top: an enforced limit, far away, and a lane per tenant. The third, witnessing,
// is called by the witness filter besides, for every response.
const (
	enforcing = `
  chat: {lanes: {mode: enforce, virtualLanes: true, minLimit: 1000000, initialLimit: 1000000, maxLimit: 1000000, firstToken: headers}}
`
	witnessing = `
  chat: {lanes: {mode: enforce, virtualLanes: true, minLimit: 1000000, initialLimit: 1000000, maxLimit: 1000000, firstToken: witness}}
`
)

// readyWithin is how long a server or Envoy may take to start.
const readyWithin = 60 * time.Second

// arm is one server under measurement, and the Envoy in front of it.
type arm struct {
	name        string
	grpc, admin string // addresses, host:port
	server      *stack.Process
	envoy       *stack.Envoy  // nil when nothing is measured through it
	settle      time.Duration // what the server needs to finish what the last answers left to do
	scraped     bool          // its metrics are read while it is measured
	spans       *atomic.Int64 // that were exported; nil when it exports none
}

// settle is enough for what ends an exchange.
const settle = 30 * time.Millisecond

// bench holds what runs during the measurements.
type bench struct {
	options
	dir        string
	upstream   *load.Upstream
	collectors []*collector // of spans
	arms       []*arm       // the one that ratios are to first
}

// start builds and starts every server, and an Envoy for each.
func (b *bench) start(ctx context.Context) error {
	noop, err := b.build(ctx, b.module, "./noop")
	if err != nil {
		return err
	}
	if b.binary == "" {
		if b.binary, err = b.build(ctx, b.repository, "./cmd/extproc"); err != nil {
			return err
		}
	}
	if b.upstream, err = load.NewUpstream(); err != nil {
		return err
	}
	idle := func(c *config.Config, _ string) (string, []string) {
		return noop, []string{"-listen", c.Listen.GRPC, "-admin", c.Listen.Admin}
	}
	if err := b.startArm(ctx, server{name: "no-op", command: idle}); err != nil {
		return err
	}
	// The other collects garbage as seldom as Headgate does by itself: what is left is the price of the decisions.
	if err := b.startArm(ctx, server{name: "no-op GOGC=400", environ: append(os.Environ(), "GOGC=400"), command: idle}); err != nil {
		return err
	}
	headgate := func(_ *config.Config, file string) (string, []string) {
		return b.binary, []string{"serve", "--config", file}
	}
	if err := b.startArm(ctx, server{name: "headgate", command: headgate}); err != nil {
		return err
	}
	if err := b.startArm(ctx, server{name: withoutWitness, clusters: enforcing, command: headgate}); err != nil {
		return err
	}
	if !strings.Contains(b.modes, "envoy") {
		return nil // the witness is a filter of Envoy's
	}
	return b.startArm(ctx, server{name: withWitness, clusters: witnessing, command: headgate})
}

// build compiles a command of the module in dir.
func (b *bench) build(ctx context.Context, dir, command string) (string, error) {
	binary := filepath.Join(b.dir, filepath.Base(command))
	c := exec.CommandContext(ctx, "go", "build", "-o", binary, command)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return binary, nil
}

// server is what startArm starts.
type server struct {
	name     string
	clusters string   // settings on top of headgate.yaml
	environ  []string // nil is this process's
	command  func(c *config.Config, file string) (path string, args []string)
}

// startArm starts a server, and an Envoy configured for it where something is measured through Envoy. All servers get the
// Envoy that Headgate ships, so that they are sent the same messages.
func (b *bench) startArm(ctx context.Context, s server) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	ports, err := stack.FreePorts(2)
	if err != nil {
		return err
	}
	a := &arm{name: s.name, grpc: ports[0], admin: ports[1], settle: settle}
	b.arms = append(b.arms, a)
	file := filepath.Join(b.dir, s.name+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings+s.clusters, a.grpc, a.admin), 0o600); err != nil {
		return err
	}
	c, err := config.Load(file, nil)
	if err != nil {
		return fmt.Errorf("configuration of %s: %w", s.name, err)
	}
	path, args := s.command(c, file)
	a.server, err = stack.StartProcess(stack.ProcessOptions{Name: s.name, Path: path, Args: args, Env: s.environ, Log: filepath.Join(b.dir, s.name+".log")})
	if err != nil {
		return err
	}
	if err := ready(ctx, a.grpc); err != nil {
		return fmt.Errorf("%s: %w\n%s", s.name, err, a.server.Tail())
	}
	if strings.Contains(b.modes, "envoy") || b.options.record {
		a.envoy, err = b.startEnvoy(ctx, c)
	}
	return err
}

// startEnvoy starts the Envoy that matches c, on free ports.
func (b *bench) startEnvoy(ctx context.Context, c *config.Config) (*stack.Envoy, error) {
	binary, err := stack.Finder{Root: b.repository, Progress: os.Stderr}.Envoy(ctx)
	if err != nil {
		return nil, err
	}
	bootstrap, err := stack.NewBootstrap(c, envoyconf.Options{Upstream: b.upstream.Addr()})
	if err != nil {
		return nil, err
	}
	bootstrap.FreePorts()
	text, err := bootstrap.Marshal()
	if err != nil {
		return nil, err
	}
	return stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
}

// ready waits until the server at address says that it serves.
func ready(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		switch {
		case err != nil:
			return fmt.Errorf("not ready: %w", err)
		case answer.Status == healthpb.HealthCheckResponse_SERVING:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %s: %w", answer.Status, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends everything that start started.
func (b *bench) stop() {
	for _, a := range b.arms {
		if a.envoy != nil {
			a.envoy.Stop()
		}
		if a.server != nil {
			a.server.Stop()
		}
	}
	if b.upstream != nil {
		b.upstream.Close()
	}
	for _, c := range b.collectors {
		c.server.Close()
	}
}
