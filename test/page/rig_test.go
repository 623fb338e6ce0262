//go:build browser

package page

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/telemetry"
)

// hostile is a name that must come out as text.
const hostile = `<img src=x onerror="document.title='owned'">`

// rig is the admin handler over the real controllers, under load.
type rig struct {
	url     string
	bytes   *budget.Controller
	lanes   *adaptive.Registry
	metrics *telemetry.Metrics
	leases  *lease.Service

	mu     sync.Mutex
	served map[string]map[string]any // health documents by their time, as JSON has them
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{served: map[string]map[string]any{}}
	high := memory.Pressure{Severity: memory.High, Signal: memory.SignalMemoryRatio, Value: .87, Threshold: .85}
	r.bytes = budget.New(budget.DefaultSettings(), memory.Budget{Bytes: 64 << 20, Source: "cgroup", Ceiling: 2 << 30}, func() memory.Pressure { return high })
	r.lanes = adaptive.NewRegistry(func(string) adaptive.Settings {
		s := adaptive.DefaultSettings()
		s.Mode, s.VirtualLanes, s.MinLimit, s.InitialLimit, s.MaxLimit = adaptive.Enforce, true, 8, 32, 64
		return s
	}, 0)
	var err error
	if r.metrics, err = telemetry.NewMetrics(telemetry.MetricsOptions{Version: "1.2.3"}); err != nil {
		t.Fatalf("metrics: %v", err)
	}
	pools := config.Default().Leases
	pools.Pools = map[string]lease.PoolSettings{"chat": {Connections: []lease.ConnectionSettings{{ID: "a", Cluster: "openai-1"}, {ID: "b", Cluster: "openai-2"}}}}
	if r.leases, err = lease.New(pools, nil, lease.Options{Log: slog.New(slog.DiscardHandler), Observer: r.metrics.LeaseObserver()}); err != nil {
		t.Fatalf("leases: %v", err)
	}
	board, err := admin.NewBoard(admin.BoardOptions{Health: r.health, Lanes: r.lanes.Totals})
	if err != nil {
		t.Fatalf("board: %v", err)
	}
	server := httptest.NewServer(admin.Handler(admin.Sources{
		Hosts: func() []string { return nil },
		Ready: func() error { return nil }, Health: r.health, Config: func() ([]byte, error) { return nil, nil }, Metrics: r.metrics.Handler(), Leases: r.leases.ListHandler(), Operate: http.NotFoundHandler(), Board: board,
	}))
	r.url = server.URL
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { board.Run(ctx) })
	for worker := range 16 {
		work.Go(func() { r.load(ctx, worker) })
	}
	t.Cleanup(func() {
		stop()
		work.Wait()
		board.Close()
		server.Close()
		r.lanes.Shutdown()
		_ = r.leases.Close()
	})
	return r
}

// health is the document, kept so that what a page shows can be compared with it.
func (r *rig) health() admin.Health {
	h := admin.Health{
		Status: "ok", Version: "1.2.3", GoVersion: "go1.26", UptimeSeconds: 93784, Exchanges: admin.Exchanges{InFlight: 12},
		ChatAdmission: r.bytes.Snapshot(), AdaptiveAdmission: r.lanes.Snapshot(), RecentRefusals: r.metrics.Refusals(),
		Leases: admin.NewLeases(r.leases.State(), r.metrics.Pools(), map[string]int{"chat": 2}),
		Config: config.ReloadStatus{Hash: "5f3c9a1b7d24e680", LastSuccess: true, Count: 2}, Time: time.Now().UTC(),
	}
	encoded, _ := json.Marshal(h)
	var document map[string]any
	_ = json.Unmarshal(encoded, &document)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served[document["time"].(string)] = document
	return h
}

func (r *rig) document(at string) map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served[at]
}

// load makes one exchange after the other until ctx ends.
func (r *rig) load(ctx context.Context, worker int) {
	clusters := []string{"chat", "embeddings", hostile}
	if *pictures != "" {
		clusters[2] = "completions"
	}
	for ctx.Err() == nil {
		cluster, lane := clusters[rand.IntN(len(clusters))], fmt.Sprintf("lane_%016x", rand.IntN(6))
		permit := new(adaptive.Permit)
		d := extproc.Decision{Cluster: cluster, Lane: lane, Reason: "admitted", Bytes: 1 << (12 + rand.IntN(12)), Cost: 6 + rand.IntN(10), Took: time.Millisecond}
		if r.lanes.Controller(cluster).Acquire(permit, adaptive.Request{Lane: lane, Cost: d.Cost}) == adaptive.Waiting {
			<-permit.Ready()
		}
		if reason := permit.Reason(); reason != "" {
			d.Reason = string(reason)
		}
		hold, waiter, _ := r.bytes.Acquire(budget.Request{Key: lane, Bytes: d.Bytes})
		if waiter != nil {
			waiter.Cancel()
		}
		if worker == 0 && rand.IntN(3) == 0 {
			d.Reason, d.Waited = "queue_timeout", 2*time.Second
			var id trace.TraceID
			binary.BigEndian.PutUint64(id[:], rand.Uint64())
			binary.BigEndian.PutUint64(id[8:], rand.Uint64())
			d.Trace = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{2}})
		}
		r.metrics.Decided(context.Background(), d)
		permit.Forwarded()
		pause(ctx, time.Duration(20+rand.IntN(60))*time.Millisecond)
		permit.FirstToken()
		pause(ctx, time.Duration(20+rand.IntN(100+worker*20))*time.Millisecond)
		permit.Done(adaptive.OK)
		if hold != nil {
			hold.Release()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// get asks the admin endpoint.
func (r *rig) get(t *testing.T, path string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		t.Fatalf("make a request: %v", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("get %s: %v", path, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}
