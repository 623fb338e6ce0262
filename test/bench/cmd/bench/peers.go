package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// The names of what is measured.
const (
	envoyAlone     = "Envoy alone"
	noopServer     = "no-op"
	bareServer     = "grpc-go bare"
	bytesOnly      = "headgate"
	withoutWitness = "headgate+lanes"
	withWitness    = "headgate+lanes+witness"
	withLeases     = "headgate+lanes+leases"
	rateLimiter    = "ratelimit+Redis"
	framedBytes    = "headgate+lanes framed"
	envoysOwn      = "Envoy's filters"
)

// Enforced limits are far away, with a lane per tenant.
const (
	lanesOff    = "clusters:\n  \"*\": {lanes: {mode: off}}\n"
	enforced    = "mode: enforce, virtualLanes: true, minLimit: 1000000, initialLimit: 1000000, maxLimit: 1000000"
	lanesOn     = "clusters:\n  chat: {lanes: {" + enforced + ", firstToken: headers}}\n"
	witnessing  = "clusters:\n  chat: {lanes: {" + enforced + ", firstToken: witness}}\n"
	leasesOn    = "clusters:\n  chat: {lanes: {" + enforced + ", firstToken: headers}, lease: {mode: required, pool: bench}}\n"
	apiKey      = "bench-key"
	leasedCount = 8 // connections of the pool, each with a session of its own
)

// server is one of those that are compared.
type server struct {
	name     string
	clusters string   // of Headgate's settings, for the servers that speak ext_proc
	environ  []string // nil is this process's
	command  func(c *config.Config, file string) (path string, args []string)
	redis    bool                         // it keeps something in Redis
	direct   bool                         // it is measured without Envoy too
	only     string                       // the one mode that it is measured in; empty is every
	envoy    func(*stack.Bootstrap) error // makes of the shipped configuration the one that is measured; nil leaves it
	sheds    bool                         // it may refuse some
	service  string                       // whose health says that it serves; empty is the server as a whole
}

// servers builds what has to be built and returns all that can be compared. The one that ratios are to comes first.
func (b *bench) servers(ctx context.Context) ([]server, error) {
	noop, err := b.build(ctx, b.module, "./noop")
	if err != nil {
		return nil, err
	}
	if b.binary == "" {
		if b.binary, err = b.build(ctx, b.repository, "./cmd/extproc"); err != nil {
			return nil, err
		}
	}
	idle := func(more ...string) func(c *config.Config, _ string) (string, []string) {
		return func(c *config.Config, _ string) (string, []string) {
			return noop, append([]string{"-listen", c.Listen.GRPC, "-admin", c.Listen.Admin}, more...)
		}
	}
	headgate := func(_ *config.Config, file string) (string, []string) {
		return b.binary, []string{"serve", "--config", file}
	}
	all := []server{
		{name: noopServer, clusters: lanesOn, command: idle(), direct: true},
		// Collects garbage as seldom as Headgate does by itself: what is left is the price of the decisions.
		{name: "no-op GOGC=400", clusters: lanesOn, environ: append(os.Environ(), "GOGC=400"), command: idle(), direct: true, only: "direct"},
		{name: bareServer, clusters: lanesOn, environ: append(os.Environ(), "GOGC=400"), command: idle("-bare"), direct: true, only: "direct"},
		{name: bytesOnly, clusters: lanesOff, command: headgate, direct: true},
		{name: withoutWitness, clusters: lanesOn, command: headgate, direct: true},
		{name: framedBytes, clusters: lanesOn, environ: append(os.Environ(), "HEADGATE_BYTES_COUNT=framed"), command: headgate},
		{name: withWitness, clusters: witnessing, command: headgate},
		{name: withLeases, clusters: leasesOn + leaseSettings(), command: headgate, redis: true},
		{name: envoyAlone, clusters: lanesOn, envoy: withoutProcessor},
		{name: envoysOwn, clusters: lanesOn, envoy: withEnvoysFilters, sheds: true},
	}
	if !b.wants(rateLimiter) || b.options.record {
		return all, nil
	}
	limiter, err := b.buildRateLimiter(ctx)
	if err != nil {
		return nil, err
	}
	return append(all, limiter), nil
}

// leaseSettings are a pool with a session for each of its connections. The Redis address is filled in.
func leaseSettings() string {
	hash := sha256.Sum256([]byte(apiKey))
	var ids, pool strings.Builder
	for i := range leasedCount {
		fmt.Fprintf(&ids, "account-%d,", i)
		fmt.Fprintf(&pool, "      - {id: account-%d, cluster: accounts, models: [\"*\"]}\n", i)
	}
	return "leases:\n  ttl: 30m\n  maxHold: 24h\n  store: {embedded: false, redis: {addrs: [\"%s\"]}}\n  pools:\n    bench:\n      connections:\n" + pool.String() +
		fmt.Sprintf("principals: [{id: bench, keySHA256: %x, scopes: [\"lease:exclusive\"], connections: [%s]}]\n", hash, strings.TrimSuffix(ids.String(), ","))
}

// buildRateLimiter builds envoyproxy/ratelimit, with a limit per tenant that is far away. The Redis address is filled in.
func (b *bench) buildRateLimiter(ctx context.Context) (server, error) {
	binary, err := b.build(ctx, filepath.Join(b.module, "peers"), "github.com/envoyproxy/ratelimit/src/service_cmd")
	if err != nil {
		return server{}, err
	}
	root := filepath.Join(b.dir, "ratelimit")
	if err := os.MkdirAll(filepath.Join(root, "config"), 0o700); err != nil {
		return server{}, err
	}
	rule := "domain: bench\ndescriptors:\n- key: tenant\n  rate_limit: {unit: second, requests_per_unit: 1000000000}\n"
	if err := os.WriteFile(filepath.Join(root, "config", "bench.yaml"), []byte(rule), 0o600); err != nil {
		return server{}, err
	}
	return server{
		name: rateLimiter, clusters: lanesOn, redis: true, envoy: withRateLimit, service: "ratelimit",
		environ: append(os.Environ(), "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=warn", "DISABLE_STATS=true",
			"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1"),
		command: func(*config.Config, string) (string, []string) { return binary, nil },
	}, nil
}

// owner is the secret of a session.
func owner(i int) string {
	hash := sha256.Sum256(fmt.Appendf(nil, "session %d", i))
	return "vlo_" + hex.EncodeToString(hash[:])[:43]
}
