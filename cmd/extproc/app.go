package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/telemetry"
)

// app is the sidecar put together: which part gets what from whom.
type app struct {
	log     *slog.Logger
	began   time.Time
	config  atomic.Pointer[config.Config]
	watcher atomic.Pointer[config.Watcher]
	ready   atomic.Bool

	monitor *memory.Monitor
	bytes   *budget.Controller
	lanes   *adaptive.Registry
	sharing *sharing
	leases  *lease.Service
	metrics *telemetry.Metrics
	tracing *telemetry.Tracing
	board   *admin.Board
	server  *extproc.Server

	grpc         *grpc.Server
	health       *health.Server
	grpcListener net.Listener
	http         []httpServer
}

func newApp(cfg *config.Config, log *slog.Logger) (*app, error) {
	a := &app{log: log, began: time.Now()}
	a.config.Store(cfg)
	key, err := cfg.Fanout.Key()
	if err != nil {
		return nil, err
	}
	if err := checkCeiling(cfg.Bytes.Budget, nil); err != nil {
		return nil, err
	}
	if err := a.openTelemetry(); err != nil {
		return nil, err
	}
	if a.leases, err = lease.New(cfg.Leases, cfg.Principals, lease.Options{Log: log, Observer: a.metrics.LeaseObserver()}); err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	a.monitor = memory.NewMonitor(cfg.Pressure, cfg.Bytes.Budget, cfg.Bytes.MemoryRatio, log)
	ceiling := memory.ReadCeiling(cfg.Bytes.Budget, os.Getenv)
	a.bytes = budget.New(cfg.Bytes, ceiling.Budget(cfg.Bytes.Budget), a.monitor.Pressure)
	a.lanes = adaptive.NewRegistry(laneSettings(cfg), cfg.Tenant.MaxLanes)
	a.sharing = newSharing()
	a.lanes.OnNew(a.sharing.groups.Join)
	share, _, err := a.sharing.prepare(cfg, a.lanes)
	if err != nil {
		return nil, err
	}
	share()
	a.monitor.OnBudget(a.bytes.SetBudget)
	a.monitor.OnPressure(func(p memory.Pressure) {
		a.bytes.Wake()
		a.lanes.Observe(adaptive.Severity(p.Severity))
	})
	if err := extproc.CheckVerdicts(); err != nil {
		return nil, err
	}
	a.server = extproc.NewServer(cfg, extproc.Dependencies{
		Bytes: a.bytes, Pressure: a.monitor.Pressure, Shed: a.monitor.Shed, Lanes: a.lanes,
		Parents:  adaptive.NewParentTokens(key, cfg.Fanout.TTL, cfg.Fanout.MaxDepth),
		LaneKey:  laneKey(key),
		Leases:   a.leases,
		Observer: a.metrics, Log: log, StartSpan: a.tracing.StartSpan(),
	})
	options, err := grpcOptions(cfg.Listen.GRPCTLS, log)
	if err != nil {
		return nil, err
	}
	a.grpc, a.health = newGRPC(options)
	a.server.Register(a.grpc)
	a.metrics.Observe(a.gauges())
	return a, nil
}

// openTelemetry sets metrics and traces up as the OTEL_* environment says, and the status page.
func (a *app) openTelemetry() error {
	ctx := context.Background()
	readers, err := telemetry.OTLPReaders(ctx)
	if err != nil {
		return err
	}
	if a.metrics, err = telemetry.NewMetrics(telemetry.MetricsOptions{Version: buildVersion(), Readers: readers}); err != nil {
		return err
	}
	if a.tracing, err = telemetry.NewTracing(ctx, buildVersion(), a.log); err != nil {
		return err
	}
	a.board, err = admin.NewBoard(admin.BoardOptions{
		Health: a.healthDocument,
		Lanes:  func() map[string]adaptive.Snapshot { return a.lanes.Totals() },
	})
	return err
}

// gauges are what a scrape reads.
func (a *app) gauges() telemetry.Sources {
	return telemetry.Sources{
		Bytes: a.bytes.Snapshot, Signals: a.monitor.Signals, Lanes: a.lanes.Totals, Streams: a.server.Active, Config: a.reloads, Leases: a.leases.State,
		Connections: a.connections, Sharing: a.sharing.groups.Status,
	}
}

// reloads is the outcome of the last reload; before there is a watcher, of the start.
func (a *app) reloads() config.ReloadStatus {
	if w := a.watcher.Load(); w != nil {
		return w.Status()
	}
	return config.ReloadStatus{Hash: a.config.Load().Hash(), LastSuccess: true}
}

// connections counts the configured connections by lease pool.
func (a *app) connections() map[string]int {
	pools := a.config.Load().Leases.Pools
	n := make(map[string]int, len(pools))
	for name, p := range pools {
		n[name] = len(p.Connections)
	}
	return n
}

// poolOf is the lease pool that has a connection, empty where none has.
func (a *app) poolOf(connection string) string {
	for name, p := range a.config.Load().Leases.Pools {
		if slices.ContainsFunc(p.Connections, func(c lease.ConnectionSettings) bool { return c.ID == connection }) {
			return name
		}
	}
	return ""
}

// laneKey derives the key of the lane names from the secret that replicas share for parent tokens, so that a token means
// the same lane on each; nil without one.
func laneKey(secret []byte) []byte {
	if secret == nil {
		return nil
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("headgate lane names"))
	return mac.Sum(nil)
}

func laneSettings(cfg *config.Config) func(string) adaptive.Settings {
	return func(cluster string) adaptive.Settings { return cfg.Cluster(cluster).Lanes }
}

// apply puts a reloaded configuration into force. What can fail comes first, so that a fault changes nothing and refuses
// nobody: lanes and budget are only prepared until the leases, whose store may have to be opened, are in force too.
func (a *app) apply(cfg *config.Config) error {
	putLanes, err := a.lanes.Prepare(laneSettings(cfg))
	if err != nil {
		return fmt.Errorf("lanes: %w", err)
	}
	if err := checkCeiling(cfg.Bytes.Budget, &a.config.Load().Bytes.Budget); err != nil {
		return err
	}
	share, discard, err := a.sharing.prepare(cfg, a.lanes)
	if err != nil {
		return err
	}
	if err := a.leases.Configure(cfg.Leases, cfg.Principals); err != nil {
		discard()
		return fmt.Errorf("leases: %w", err)
	}
	putLanes()
	share()
	a.bytes.Configure(cfg.Bytes)
	a.monitor.Configure(cfg.Pressure, cfg.Bytes.Budget, cfg.Bytes.MemoryRatio)
	a.server.Configure(cfg)
	a.config.Store(cfg)
	return nil
}

// checkCeiling reports that the process whose memory limit counts cannot be read, where the settings name one that they did not
// name before: then there is no last known limit of it. before is nil at the start.
func checkCeiling(s memory.BudgetSettings, before *memory.BudgetSettings) error {
	if !s.NamesProcess() || before != nil && before.CgroupRoot == s.CgroupRoot && before.CgroupPID == s.CgroupPID {
		return nil
	}
	if err := memory.ReadCeiling(s, os.Getenv).Err(); err != nil {
		return fmt.Errorf("bytes.budget: memory limit: %w", err)
	}
	return nil
}

func (a *app) adminSources() admin.Sources {
	return admin.Sources{
		Ready:   a.readiness,
		Health:  a.healthDocument,
		Config:  func() ([]byte, error) { return a.config.Load().Redacted() },
		Metrics: a.metrics.Handler(),
		Leases:  a.leases.ListHandler(),
		Operate: admin.Operations{
			Leases: a.leases, PoolOf: a.poolOf, Token: a.config.Load().Listen.AdminToken, Log: a.log,
		}.Handler(),
		Board:  a.board,
		LaneOf: a.server.LaneOf,
		Hosts:  func() []string { return a.config.Load().Listen.AdminHosts },
	}
}

func (a *app) healthDocument() admin.Health {
	h := admin.Health{
		Status: "ok", Version: buildVersion(), GoVersion: runtime.Version(), UptimeSeconds: int64(time.Since(a.began).Seconds()), Time: time.Now().UTC(),
		Exchanges:     admin.Exchanges{InFlight: a.server.Active()},
		ChatAdmission: a.bytes.Snapshot(), AdaptiveAdmission: a.lanes.Snapshot(), Sharing: a.sharing.groups.Status(),
		Leases:         admin.NewLeases(a.leases.State(), a.metrics.Pools(), a.connections()),
		RecentRefusals: a.metrics.Refusals(), Config: a.reloads(),
	}
	h.Traffic = admin.NewTraffic(a.server.WithoutTenant(), a.config.Load(), h.AdaptiveAdmission)
	if h.Leases.Status != "ok" {
		h.Status = h.Leases.Status
	}
	if !a.ready.Load() {
		h.Status = "draining"
	}
	return h
}

// metricsOnly is what a scraper reaches that must not reach the admin port.
func (a *app) metricsOnly() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	return mux
}

// api is what clients reach, directly or through an Envoy route.
func (a *app) api() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/admission/probe", a.server.ProbeHandler())
	leases := a.leases.Handler(a.server.IdentifyRequest)
	mux.Handle("/v1/session-leases", leases)
	mux.Handle("/api/v1/session-leases", leases)
	return mux
}

// close lets go of what newApp and listen opened.
func (a *app) close() {
	if a.grpcListener != nil {
		_ = a.grpcListener.Close()
	}
	for _, h := range a.http {
		_ = h.listener.Close()
	}
	a.server.Close()
	a.sharing.close()
	if err := a.leases.Close(); err != nil {
		a.log.Warn("close the lease store", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = errors.Join(a.tracing.Shutdown(ctx), a.metrics.Shutdown(ctx)) // what is lost is telemetry
}
