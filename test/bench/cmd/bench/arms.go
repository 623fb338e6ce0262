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

//go:embed headgate.yaml.tmpl
var settings string

// readyWithin is how long a server or Envoy may take to start.
const readyWithin = 60 * time.Second

// arm is one server under measurement, and the Envoy in front of it.
type arm struct {
	server
	grpc, admin, api string // addresses; grpc as a server listens
	process          *stack.Process
	envoy            *stack.Envoy // nil when nothing is measured through it
	store            *stack.Redis // nil when it needs none
	headers          [][]load.Header
	settle           time.Duration // what the server needs to finish what the last answers left to do
	scraped          bool          // its metrics are read while it is measured
	spans            *atomic.Int64 // that were exported; nil when it exports none
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

// start builds and starts the servers that the command line asks for, which talk to Envoy over that kind of socket.
func (b *bench) start(ctx context.Context, socket string) error {
	servers, err := b.servers(ctx)
	if err != nil {
		return err
	}
	if b.upstream == nil {
		if b.upstream, err = load.NewUpstream(); err != nil {
			return err
		}
	}
	for _, s := range servers {
		speaksUnix := s.name != rateLimiter
		if !b.wants(s.name) || (socket == "unix" && !speaksUnix) {
			continue
		}
		fmt.Fprintf(os.Stderr, "\rstarting %s   ", s.name)
		if err := b.startArm(ctx, s, socket); err != nil {
			return err
		}
	}
	return nil
}

// wants reports whether the command line asks for a server. The one that ratios are to is always there.
func (o options) wants(server string) bool {
	if o.servers == "" || server == noopServer {
		return true
	}
	for name := range strings.SplitSeq(o.servers, ",") {
		if server == name {
			return true
		}
	}
	return false
}

// build compiles a command of the module in dir.
func (b *bench) build(ctx context.Context, dir, command string) (string, error) {
	binary := filepath.Join(b.dir, filepath.Base(command))
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	c := exec.CommandContext(ctx, "go", "build", "-o", binary, command)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return binary, nil
}

// startArm starts a server, and an Envoy configured for it where something is measured through Envoy. All servers that speak
// ext_proc get the Envoy that Headgate prints.
func (b *bench) startArm(ctx context.Context, s server, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	ports, err := stack.FreePorts(3)
	if err != nil {
		return err
	}
	a := &arm{server: s, grpc: ports[0], admin: ports[1], settle: settle}
	b.arms = append(b.arms, a)
	name := strings.Map(fileName, s.name+"-"+socket)
	if socket == "unix" {
		a.grpc = "unix://" + filepath.Join(b.dir, name+".sock")
	}
	text := a.settings("") + s.clusters
	if s.redis {
		if a.store, err = stack.StartRedis(ctx, stack.RedisOptions{Binary: b.redis}); err != nil {
			return err
		}
		a.environ = append(a.environ, "REDIS_URL="+a.store.Addr)
	}
	if s.name == withLeases {
		a.api = ports[2]
		text = a.settings(a.api) + fmt.Sprintf(s.clusters, a.store.Addr)
	}
	file := filepath.Join(b.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	c, err := config.Load(file, a.environ)
	if err != nil {
		return fmt.Errorf("configuration of %s: %w", s.name, err)
	}
	if err := a.startServer(ctx, c, file, filepath.Join(b.dir, name+".log")); err != nil {
		return err
	}
	if a.name == withLeases {
		if a.headers, err = a.acquire(ctx); err != nil {
			return err
		}
	}
	if b.measures("envoy") && s.only != "direct" || b.options.record {
		a.envoy, err = b.startEnvoy(ctx, c, s.envoy)
	}
	return err
}

// settings of the server, but for its clusters.
func (a *arm) settings(api string) string {
	return fmt.Sprintf(settings, a.grpc, a.admin, api)
}

// fileName keeps what may stand in the name of a file.
func fileName(r rune) rune {
	if strings.ContainsRune(" =+'/", r) {
		return '-'
	}
	return r
}

// startServer starts the arm's server, where there is one, and waits until it serves.
func (a *arm) startServer(ctx context.Context, c *config.Config, file, log string) error {
	if a.command == nil {
		return nil
	}
	if a.name == rateLimiter {
		_, port, _ := strings.Cut(a.grpc, ":")
		_, debug, _ := strings.Cut(a.admin, ":")
		a.environ = append(a.environ, "GRPC_PORT="+port, "DEBUG_PORT="+debug, "PORT=0")
	}
	path, args := a.command(c, file)
	var err error
	a.process, err = stack.StartProcess(stack.ProcessOptions{Name: a.name, Path: path, Args: args, Env: a.environ, Log: log})
	if err != nil {
		return err
	}
	if err := ready(ctx, a.grpc, a.service); err != nil {
		return fmt.Errorf("%s: %w\n%s", a.name, err, a.process.Tail())
	}
	return nil
}

// startEnvoy starts the Envoy that matches c, on free ports, with what edit makes of it.
func (b *bench) startEnvoy(ctx context.Context, c *config.Config, edit func(*stack.Bootstrap) error) (*stack.Envoy, error) {
	binary, err := b.tools().Envoy(ctx)
	if err != nil {
		return nil, err
	}
	bootstrap, err := stack.NewBootstrap(c, envoyconf.Options{Upstream: b.upstream.Addr()})
	if err != nil {
		return nil, err
	}
	bootstrap.FreePorts()
	if edit != nil {
		if err := edit(bootstrap); err != nil {
			return nil, err
		}
	}
	text, err := bootstrap.Marshal()
	if err != nil {
		return nil, err
	}
	return stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
}

// tools finds the programs that are not built here.
func (o options) tools() stack.Finder { return stack.Finder{Root: o.repository, Progress: os.Stderr} }

// ready waits until the server at address says that it serves.
func ready(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
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

// stopArms ends the servers and what belongs to them.
func (b *bench) stopArms() {
	for _, a := range b.arms {
		if a.envoy != nil {
			a.envoy.Stop()
		}
		if a.process != nil {
			a.process.Stop()
		}
		if a.store != nil {
			a.store.Stop()
		}
	}
	b.arms = nil
}

// stop ends everything that was started.
func (b *bench) stop() {
	b.stopArms()
	if b.upstream != nil {
		b.upstream.Close()
	}
	for _, c := range b.collectors {
		c.server.Close()
	}
}
