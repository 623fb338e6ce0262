package endurance

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// connections is how many accounts the lease pool has.
const connections = 8

// rig is the product with all that it stands between, each on an address that it keeps over a restart.
type rig struct {
	judge   *judge
	redis   *stack.Redis
	sidecar *stack.Sidecar
	envoy   *stack.Envoy

	dir       string
	config    string // file
	bootstrap []byte
	listen    string // Envoy's
}

// rigOptions are what differs between the targets.
type rigOptions struct {
	sidecar string // binary
	slots   int    // of the upstream; 0 is no bound
	overlay string // settings of the sidecar
	log     string // file of the sidecar's log; empty is a temporary one

	protected int // process whose memory the sidecar watches; 0 is none
}

// settings are those of the sidecar: lanes with a limit that learns, small budgets, leases in Redis.
func settings(listen []string, redis string, protected int, overlay string) string {
	var pool, ids strings.Builder
	for i := range connections {
		fmt.Fprintf(&pool, "      - {id: acct-%d, cluster: acct-%d, models: [\"*\"], displayName: A, provider: demo}\n", i, i)
		fmt.Fprintf(&ids, "acct-%d, ", i)
	}
	return fmt.Sprintf(`listen: {grpc: "%s", admin: "%s", api: "%s"}
tenant: {sources: [{header: x-tenant-id}]}
clusters:
  "*": {protocol: client}
  chat: {lanes: {mode: enforce, virtualLanes: true}}
  leased: {lease: {mode: required, pool: leased}}
leases:
  store: {redis: {kind: single, addrs: ["%s"]}}
  pools:
    leased:
      connections:
%sprincipals:
- id: team-a
  keySHA256: f15424e984f66fb993b9d8e6444ade02adcc714a58b3b50106e98750e4244bfe
  scopes: ["lease:exclusive"]
  connections: [%s]
bytes: {largeBody: 64KiB, hardMaxBody: 4MiB, budget: {override: 32MiB, cgroupPid: %d}}
shutdown: {drain: 0s, grace: 5s}
%s
`, listen[0], listen[1], listen[2], redis, pool.String(), strings.TrimSuffix(ids.String(), ", "), protected, overlay)
}

// newRig starts everything. Call stop in any case.
func newRig(ctx context.Context, o rigOptions) (*rig, error) {
	dir, err := os.MkdirTemp("", "headgate-endurance-")
	if err != nil {
		return nil, err
	}
	r := &rig{dir: dir, config: filepath.Join(dir, "config.yaml")}
	if err := r.start(ctx, o); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) start(ctx context.Context, o rigOptions) error {
	ports, err := stack.FreePorts(6)
	if err != nil {
		return err
	}
	if r.redis, err = stack.StartRedis(ctx, stack.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}}); err != nil {
		return err
	}
	if r.judge, err = newJudge(ports[0], o.slots); err != nil {
		return err
	}
	if err := os.WriteFile(r.config, []byte(settings(ports[1:4], r.redis.Addr, o.protected, o.overlay)), 0o600); err != nil {
		return err
	}
	loaded, err := config.Load(r.config, os.Environ())
	if err != nil {
		return err
	}
	r.listen = ports[4]
	b, err := stack.NewBootstrap(loaded, envoyconf.Options{Upstream: ports[0], Listen: ports[4], Admin: ports[5]})
	if err != nil {
		return err
	}
	if r.bootstrap, err = b.Marshal(); err != nil {
		return err
	}
	if r.sidecar, err = stack.StartSidecar(ctx, stack.SidecarOptions{Binary: o.sidecar, Config: r.config, Log: o.log}); err != nil {
		return err
	}
	return r.startEnvoy(ctx)
}

func (r *rig) startEnvoy(ctx context.Context) (err error) {
	r.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Bootstrap: r.bootstrap, LogLevel: "error"})
	return err
}

func (r *rig) stop() {
	if r.envoy != nil {
		r.envoy.Stop()
	}
	if r.sidecar != nil {
		if r.sidecar.Process != nil {
			_ = r.sidecar.Signal(syscall.SIGCONT) // fails when it has ended
		}
		r.sidecar.Stop()
	}
	if r.redis != nil {
		r.redis.Stop()
	}
	if r.judge != nil {
		r.judge.close()
	}
	os.RemoveAll(r.dir)
}

// serves waits until a request passes, and returns how long that took.
func (r *rig) serves(ctx context.Context, within time.Duration) (time.Duration, error) {
	began := time.Now()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	for {
		in, err := c.Get("http://" + r.listen + "/probe")
		if err == nil {
			in.Body.Close()
			if in.StatusCode == http.StatusOK {
				return time.Since(began), nil
			}
			err = fmt.Errorf("status %d", in.StatusCode)
		}
		if time.Since(began) > within {
			return time.Since(began), fmt.Errorf("no request passes for %v: %w", within, err)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
}

// idle waits until nothing is in flight, and returns what is left after a while.
func (r *rig) idle(ctx context.Context) (left map[string]float64, err error) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left, err = r.sidecar.Busy(ctx)
		if err == nil && len(left) == 0 && r.judge.active.Load() == 0 || time.Now().After(end) {
			if err == nil && r.judge.active.Load() != 0 {
				left["requests at the upstream"] = float64(r.judge.active.Load())
			}
			return left, err
		}
	}
}

// vitals are what must not grow.
type vitals struct {
	Goroutines, Descriptors, MemoryMiB, HeapMiB, Keys float64
}

// vitals reads those of the sidecar and of Redis.
func (r *rig) vitals(ctx context.Context) (v vitals, err error) {
	text, err := r.sidecar.Get(ctx, "/metrics")
	if err != nil {
		return v, err
	}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "go_goroutines", "go_goroutine_count":
			v.Goroutines = n
		case "go_memstats_heap_inuse_bytes", "go_memory_used_bytes":
			v.HeapMiB = n / (1 << 20)
		}
	}
	pid := r.sidecar.PID()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return v, err
	}
	v.Descriptors = float64(len(files))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return v, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 64)
			if err != nil {
				return v, err
			}
			v.MemoryMiB = kib / 1024
		}
	}
	keys, err := r.redis.Do(ctx, "DBSIZE")
	if n, ok := keys.(int64); ok {
		v.Keys = float64(n)
	}
	return v, err
}
