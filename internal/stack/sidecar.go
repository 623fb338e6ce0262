package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// SidecarOptions say what sidecar to start. Exactly one of Binary and InProcess is set.
type SidecarOptions struct {
	Binary    string                                          // of cmd/extproc
	InProcess func(ctx context.Context, args ...string) error // serves in this process until ctx ends, for profiles
	Config    string                                          // configuration file
	Environ   []string                                        // the whole environment; nil is this process's (not with InProcess)
	Log       string                                          // file for its log; empty is a temporary one
}

// Sidecar is a running sidecar.
type Sidecar struct {
	*Process                // nil with InProcess
	Config   *config.Config // as the sidecar loaded it at its start

	o      SidecarOptions
	dir    string
	admin  *http.Client
	cancel context.CancelFunc
	ended  chan error // of InProcess
}

// BuildSidecar builds cmd/extproc of the repository at root into the file out, with extra flags of `go build`.
func BuildSidecar(ctx context.Context, root, out string, flags ...string) error {
	args := append([]string{"build", "-C", root, "-o", out}, flags...)
	if err := command(ctx, "go", append(args, "./cmd/extproc")...); err != nil {
		return fmt.Errorf("build the sidecar: %w", err)
	}
	return nil
}

// StartSidecar starts a sidecar and waits until it is ready, at most until ctx ends. Stop it in any case.
func StartSidecar(ctx context.Context, o SidecarOptions) (*Sidecar, error) {
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	loaded, err := config.Load(o.Config, o.Environ)
	if err != nil {
		return nil, fmt.Errorf("configuration of the sidecar: %w", err)
	}
	if loaded.Listen.Admin == "" {
		return nil, fmt.Errorf("configuration of the sidecar: listen.admin is off, so nothing tells when it is ready")
	}
	dir, err := tempDir("sidecar")
	if err != nil {
		return nil, err
	}
	if o.Log == "" {
		o.Log = filepath.Join(dir, "sidecar.log")
	}
	s := &Sidecar{Config: loaded, o: o, dir: dir, admin: &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}}
	if err := s.start(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Sidecar) start(ctx context.Context) error {
	if s.o.InProcess != nil {
		return s.startInProcess(ctx)
	}
	if s.o.Binary == "" {
		return fmt.Errorf("start the sidecar: %w", errNoBinary)
	}
	process, err := StartProcess(ProcessOptions{
		Name: "sidecar", Path: s.o.Binary, Args: []string{"serve", "--config", s.o.Config}, Env: s.o.Environ, Log: s.o.Log,
		Grace: s.Config.Shutdown.Grace + 2*time.Second,
	})
	if err != nil {
		return err
	}
	s.Process = process
	return process.waitReady(ctx, s.ready)
}

func (s *Sidecar) startInProcess(ctx context.Context) error {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel, s.ended = cancel, make(chan error, 1)
	go func() { s.ended <- s.o.InProcess(life, "serve", "--config", s.o.Config) }()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case failed := <-s.ended:
			s.ended <- failed // for Stop
			return fmt.Errorf("the sidecar in this process ended: %w", failed)
		case <-ctx.Done():
			return fmt.Errorf("the sidecar in this process is not ready: %w: %w", ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ready asks the readiness probe.
func (s *Sidecar) ready(ctx context.Context) error {
	_, err := s.Get(ctx, "/readyz")
	return err
}

// Restart starts the sidecar anew, as after a crash; the old process must have ended.
func (s *Sidecar) Restart(ctx context.Context) error {
	select {
	case <-s.Done():
		return s.start(ctx)
	default:
		return fmt.Errorf("restart the sidecar: process %d still runs", s.PID())
	}
}

// Kill ends the process as a crash does and waits until it is gone.
func (s *Sidecar) Kill() {
	_ = s.Signal(syscall.SIGKILL) // fails only when it has ended
	<-s.Done()
}

// Stop ends the sidecar as Kubernetes does and removes its files. It is idempotent.
func (s *Sidecar) Stop() {
	if s.Process != nil {
		s.Process.Stop()
	}
	if s.cancel != nil {
		s.cancel()
		s.ended <- <-s.ended // once more for the next Stop
	}
	s.admin.CloseIdleConnections()
	_ = os.RemoveAll(s.dir) // leftovers in a temporary directory are not worth failing for
}

// Get returns the body of a path on the admin port.
func (s *Sidecar) Get(ctx context.Context, path string) (string, error) {
	return httpGet(ctx, s.admin, "http://"+s.Config.Listen.Admin+path)
}

// Health returns the health document.
func (s *Sidecar) Health(ctx context.Context) (map[string]any, error) {
	text, err := s.Get(ctx, "/api/monitoring/health")
	if err != nil {
		return nil, err
	}
	var health map[string]any
	if err := json.Unmarshal([]byte(text), &health); err != nil {
		return nil, fmt.Errorf("read the health document: %w", err)
	}
	return health, nil
}

// Busy returns what the health document says is in flight, waiting or reserved, by its path; empty means idle.
func (s *Sidecar) Busy(ctx context.Context) (map[string]float64, error) {
	health, err := s.Health(ctx)
	if err != nil {
		return nil, err
	}
	busy := map[string]float64{}
	collectBusy("", health, busy)
	return busy, nil
}

// collectBusy walks a decoded JSON value for numbers that are zero in an idle sidecar.
func collectBusy(path string, value any, busy map[string]float64) {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			n, isNumber := below.(float64)
			if isNumber && n != 0 && zeroWhenIdle(key) {
				busy[path+"/"+key] = n
			}
			collectBusy(path+"/"+key, below, busy)
		}
	case []any:
		for i, below := range v {
			collectBusy(path+"/"+strconv.Itoa(i), below, busy)
		}
	}
}

func zeroWhenIdle(key string) bool {
	switch key {
	case "inFlight", "activeHeavy", "activeHealthyHeadroom", "waiting", "queuedBytes", "inflightBytes",
		"activeCost", "activeCount", "queuedCost", "queuedCount", "laneQueuedCount", "laneQueuedCost",
		"virtualActiveCost", "virtualActiveCount", "virtualQueuedCost", "virtualQueuedCount":
		return true
	default:
		return false
	}
}
