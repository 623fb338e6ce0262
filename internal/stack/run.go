package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

// startTimeout bounds the start of one child of Run.
const startTimeout = 30 * time.Second

// Where things listen unless the options say otherwise.
const (
	defaultListen   = "127.0.0.1:10000"
	defaultAdmin    = "127.0.0.1:9901"
	defaultUpstream = "127.0.0.1:9001"
)

// RunOptions are the settings of Run.
type RunOptions struct {
	Root    string   // of the repository
	Environ []string // reaches the sidecar whole; CONFIG names its configuration file, ENVOY_BIN the Envoy
	Stdout  *os.File // gets the URLs, the lines to try, and Envoy's access log
	Stderr  io.Writer

	Sidecar  string // a built sidecar; empty builds it
	Listen   string // of Envoy; empty is defaultListen
	Admin    string // of Envoy; empty is defaultAdmin
	Upstream string // empty is defaultUpstream
}

// demo is one `make run`.
type demo struct {
	o       RunOptions
	dir     string
	file    string // the sidecar's configuration
	config  *config.Config
	environ []string

	upstream *Upstream
	sidecar  *Sidecar
	envoy    *Envoy
}

// Run is `make run`: it starts the demo upstream, the sidecar and Envoy, waits until all of them are ready, prints what
// to try, and stops everything when ctx ends. When a child dies by itself, the error carries the end of its log.
func Run(ctx context.Context, o RunOptions) error {
	o.Listen, o.Admin, o.Upstream = orElse(o.Listen, defaultListen), orElse(o.Admin, defaultAdmin), orElse(o.Upstream, defaultUpstream)
	if err := os.MkdirAll(filepath.Join(o.Root, ".tools"), 0o755); err != nil {
		return err
	}
	unlock, err := tryLockFile(filepath.Join(o.Root, ".tools", "run-"+strings.ReplaceAll(o.Listen, ":", "-")+".lock"))
	if errors.Is(err, errLocked) {
		return errors.New("another `make run` is running in this directory; stop it first (Ctrl-C where it runs)")
	}
	if err != nil {
		return err
	}
	defer unlock()

	dir, err := tempDir("run")
	if err != nil {
		return err
	}
	d := &demo{o: o, dir: dir}
	defer d.stop()
	if err := d.prepare(ctx); err != nil {
		return interrupted(ctx, err)
	}
	if err := d.start(ctx); err != nil {
		return interrupted(ctx, err)
	}
	fmt.Fprint(o.Stdout, d.tour())
	select {
	case <-ctx.Done():
		fmt.Fprintln(o.Stderr, "stopping ...")
		return nil
	case <-d.sidecar.Done():
		return d.sidecar.Exited()
	case <-d.envoy.Done():
		return d.envoy.Exited()
	}
}

// interrupted turns an error that came of being told to stop into none.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare does what can fail before anything runs: settings, ports, programs.
func (d *demo) prepare(ctx context.Context) error {
	if err := d.loadConfig(); err != nil {
		return err
	}
	l := d.config.Listen
	if err := checkFree([]wanted{
		{d.o.Listen, "Envoy"}, {d.o.Admin, "Envoy's admin interface"}, {d.o.Upstream, "the demo upstream"},
		{l.GRPC, "the sidecar (ext_proc)"}, {l.Admin, "the sidecar (admin)"}, {l.API, "the sidecar (API)"},
	}); err != nil {
		return err
	}
	if d.o.Sidecar == "" {
		fmt.Fprintln(d.o.Stderr, "building the sidecar ...")
		d.o.Sidecar = filepath.Join(d.o.Root, "build", "demo-extproc") // the same each time, so that it is linked once
		return BuildSidecar(ctx, d.o.Root, d.o.Sidecar)
	}
	return nil
}

// loadConfig reads the configuration the sidecar will read, to learn its addresses and what Envoy must match. A file of
// the user's that leaves listen.grpc at its default gets the demo's port: the default is a socket under /run, which an
// ordinary user cannot make.
func (d *demo) loadConfig() error {
	d.environ = d.o.Environ
	d.file = filepath.Join(d.o.Root, "internal", "stack", "demo.yaml")
	if named := lookup(d.environ, "CONFIG"); named != "" {
		file, err := filepath.Abs(named)
		if err != nil {
			return err
		}
		d.file = file
	}
	c, err := config.Load(d.file, d.environ)
	if err == nil && c.Listen.GRPC == config.Default().Listen.GRPC {
		d.environ = append([]string{"HEADGATE_LISTEN_GRPC=127.0.0.1:9002"}, d.environ...)
		c, err = config.Load(d.file, d.environ)
	}
	if err != nil {
		return err // names the file
	}
	d.config = c
	return nil
}

// start starts the three, each once the one it needs is ready.
func (d *demo) start(ctx context.Context) error {
	binary, err := Finder{Root: d.o.Root, Getenv: func(key string) string { return lookup(d.environ, key) }, Progress: d.o.Stderr}.Envoy(ctx)
	if err != nil {
		return err
	}
	if d.upstream, err = NewUpstream(d.o.Upstream); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	fmt.Fprintln(d.o.Stderr, "starting the sidecar ...")
	d.sidecar, err = StartSidecar(limited, SidecarOptions{Binary: d.o.Sidecar, Config: d.file, Environ: d.environ, Log: filepath.Join(d.dir, "sidecar.log")})
	if err != nil {
		return err
	}
	bootstrap, err := d.bootstrap()
	if err != nil {
		return err
	}
	limited, cancel = context.WithTimeout(ctx, startTimeout)
	defer cancel()
	fmt.Fprintf(d.o.Stderr, "starting Envoy (%s) ...\n", binary)
	d.envoy, err = StartEnvoy(limited, EnvoyOptions{Binary: binary, Bootstrap: bootstrap, AccessLog: d.o.Stdout})
	return err
}

// bootstrap returns the shipped configuration when it matches the settings, else the one that does.
func (d *demo) bootstrap() ([]byte, error) {
	var text bytes.Buffer
	err := envoyconf.Render(&text, d.config, envoyconf.Options{Listen: d.o.Listen, Admin: d.o.Admin, Upstream: d.o.Upstream})
	if err != nil {
		return nil, err
	}
	if moved := d.o.Listen != defaultListen || d.o.Admin != defaultAdmin || d.o.Upstream != defaultUpstream; moved {
		return text.Bytes(), nil
	}
	shipped, err := os.ReadFile(filepath.Join(d.o.Root, "deploy", "envoy", "envoy.yaml"))
	if err != nil || !bytes.Equal(shipped, text.Bytes()) {
		fmt.Fprintln(d.o.Stderr, "your settings need another Envoy configuration than deploy/envoy/envoy.yaml; using what `extproc envoy` prints for them")
	}
	return text.Bytes(), nil
}

// stop stops what runs, the client's side first.
func (d *demo) stop() {
	if d.envoy != nil {
		d.envoy.Stop()
	}
	if d.sidecar != nil {
		d.sidecar.Stop()
	}
	if d.upstream != nil {
		d.upstream.Close()
	}
	_ = os.RemoveAll(d.dir) // leftovers in a temporary directory are not worth failing for
}
