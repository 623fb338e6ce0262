package stack

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
)

//go:embed demo.yaml
var demoYAML []byte

// DemoConfig returns the sidecar's settings in `make run`.
func DemoConfig() []byte { return append([]byte(nil), demoYAML...) }

// Options describe a stack for a test or a benchmark.
type Options struct {
	Config    string                                          // settings of the sidecar as YAML, without addresses to listen on; empty is DemoConfig
	Overlay   string                                          // YAML merged over Config, map by map
	Binary    string                                          // of the sidecar; or
	InProcess func(ctx context.Context, args ...string) error // see SidecarOptions
	Environ   []string                                        // added to this process's environment for the sidecar
	Upstream  string                                          // host:port of a server that runs already; empty starts the demo upstream
	Socket    bool                                            // Envoy reaches the sidecar over a unix socket
	Envoy     []func(*Bootstrap) error                        // edits of Envoy's configuration, in order
	Run       EnvoyOptions                                    // of Envoy; its Bootstrap is filled in
	Version   string                                          // of that Envoy, such as 1.38; empty is the newest that is known
	TLSDir    string                                          // Envoy's certificate, where Overlay sets listen.grpcTLS or apiTLS
}

// Stack is an upstream, a sidecar and an Envoy between them and the client, each on free ports.
type Stack struct {
	Upstream *Upstream // nil where Options name another
	Sidecar  *Sidecar
	Envoy    *Envoy

	dir string
}

// Start starts a stack and waits until all of it is ready, at most until ctx ends. When it fails, nothing is left.
func Start(ctx context.Context, o Options) (*Stack, error) {
	dir, err := tempDir("stack")
	if err != nil {
		return nil, err
	}
	s := &Stack{dir: dir}
	if err := s.start(ctx, o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context, o Options) error {
	var err error
	upstream := o.Upstream
	if upstream == "" {
		if s.Upstream, err = NewUpstream(""); err != nil {
			return err
		}
		upstream = s.Upstream.Addr()
	}
	file, err := s.writeConfig(o)
	if err != nil {
		return err
	}
	s.Sidecar, err = StartSidecar(ctx, SidecarOptions{
		Binary: o.Binary, InProcess: o.InProcess, Config: file, Environ: append(o.Environ[:len(o.Environ):len(o.Environ)], os.Environ()...)})
	if err != nil {
		return err
	}
	bootstrap, err := NewBootstrap(s.Sidecar.Config, envoyconf.Options{Upstream: upstream, EnvoyVersion: o.Version, TLSDir: o.TLSDir})
	if err != nil {
		return err
	}
	bootstrap.FreePorts()
	for _, edit := range o.Envoy {
		if err := edit(bootstrap); err != nil {
			return err
		}
	}
	if o.Run.Bootstrap, err = bootstrap.Marshal(); err != nil {
		return fmt.Errorf("write Envoy configuration: %w", err)
	}
	s.Envoy, err = StartEnvoy(ctx, o.Run)
	return err
}

// ConfigFile returns the path of the sidecar's configuration, for tests that change it.
func (s *Stack) ConfigFile() string { return filepath.Join(s.dir, "config.yaml") }

// writeConfig writes the settings with free addresses to listen on.
func (s *Stack) writeConfig(o Options) (string, error) {
	ports, err := FreePorts(3)
	if err != nil {
		return "", err
	}
	listen := map[string]any{"grpc": ports[0], "admin": ports[1], "api": ports[2]}
	if o.Socket {
		listen["grpc"] = "unix://" + filepath.Join(s.dir, "extproc.sock")
	}
	text, err := settings(orElse(o.Config, string(demoYAML)), o.Overlay, listen)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(s.ConfigFile(), text, 0o600); err != nil {
		return "", fmt.Errorf("write the sidecar's configuration: %w", err)
	}
	return s.ConfigFile(), nil
}

// settings merges overlay over base and puts in the addresses to listen on.
func settings(base, overlay string, listen map[string]any) ([]byte, error) {
	merged := map[string]any{}
	for _, text := range []string{base, overlay} {
		var layer map[string]any
		if err := yaml.Unmarshal([]byte(text), &layer); err != nil {
			return nil, fmt.Errorf("read the sidecar's configuration: %w", err)
		}
		merge(merged, layer)
	}
	merge(merged, map[string]any{"listen": listen})
	return yaml.Marshal(merged)
}

// merge puts what over holds into base; maps are merged, everything else is replaced.
func merge(base, over map[string]any) {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		if was, both := base[key].(map[string]any); both && isMap {
			merge(was, below)
			continue
		}
		base[key] = value
	}
}

// Reconfigure replaces the sidecar's configuration file by base with overlay merged over it, keeping the addresses, the
// way a careful operator does: whole or not at all. The sidecar notices by itself. An empty base is DemoConfig.
func (s *Stack) Reconfigure(base, overlay string) error {
	l := s.Sidecar.Config.Listen
	text, err := settings(orElse(base, string(demoYAML)), overlay, map[string]any{"grpc": l.GRPC, "admin": l.Admin, "api": l.API})
	if err != nil {
		return err
	}
	next := s.ConfigFile() + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return fmt.Errorf("write the sidecar's configuration: %w", err)
	}
	return os.Rename(next, s.ConfigFile())
}

// Stop stops everything, the client's side first, and removes all files.
func (s *Stack) Stop() {
	if s.Envoy != nil {
		s.Envoy.Stop()
	}
	if s.Sidecar != nil {
		s.Sidecar.Stop()
	}
	if s.Upstream != nil {
		s.Upstream.Close()
	}
	_ = os.RemoveAll(s.dir) // leftovers in a temporary directory are not worth failing for
}

// Faults returns what must be nothing at the end of a test: counters of the ext_proc filter that tell of a processor
// that broke the protocol, was late or failed. Counters named in expected are left out.
func (s *Stack) Faults(ctx context.Context, expected ...string) (map[string]int64, error) {
	faults := map[string]int64{}
	var errs []error
	for _, name := range []string{"spurious_msgs_received", "message_timeouts", "streams_failed", "failure_mode_allowed", "rejected_header_mutations"} {
		if slices.Contains(expected, name) {
			continue
		}
		n, err := s.Envoy.ProcessorStat(ctx, name)
		errs = append(errs, err)
		if n != 0 {
			faults[name] = n
		}
	}
	return faults, errors.Join(errs...)
}
