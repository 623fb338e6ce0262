package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
	"github.com/headgate/headgate/pkg/lease"
)

func newMetrics(t testing.TB) *Metrics {
	t.Helper()
	m, err := NewMetrics(MetricsOptions{Version: "test"})
	if err != nil {
		t.Fatalf("new metrics: %v", err)
	}
	t.Cleanup(func() { _ = m.Shutdown(t.Context()) })
	return m
}

func scrape(t testing.TB, m *Metrics, accept string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: status %d, want 200: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// everything makes every instrument have a value.
func everything(t testing.TB) *Metrics {
	t.Helper()
	m := newMetrics(t)
	m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "admitted", Bytes: 1000, Took: 2 * time.Millisecond, ByteWait: time.Millisecond, LaneWait: time.Millisecond, Idled: true})
	m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "queue_timeout", Bytes: 500, Took: time.Second})
	m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "client_gone", Bytes: 70})
	m.FirstByte(context.Background(), "chat", 300*time.Millisecond)
	m.WouldReject("chat", "payload_too_large")
	o := m.LeaseObserver()
	o.Answer("check", "pool", "VALID")
	o.Call("check", time.Millisecond, nil)
	o.Call("check", time.Millisecond, io.ErrUnexpectedEOF)
	o.Lost("pool", "TTL_EXPIRED")
	o.Pool("pool", 2, 1, 5)
	m.Observe(Sources{
		Bytes: func() budget.Snapshot {
			return budget.Snapshot{InflightBytes: 111, MaxInflightBytes: 222, EffectiveCeiling: 333, ActiveHeavy: 4, ActiveHealthyHeadroom: 1,
				Waiting: 6, QueuedBytes: 777, BudgetSource: "cgroup", PressureSeverity: "critical"}
		},
		Signals: func() map[string]float64 {
			return map[string]float64{"memory_ratio": .5, "psi_some": 12, "oom_kill": 3}
		},
		Lanes: func() map[string]adaptive.Snapshot {
			return map[string]adaptive.Snapshot{"chat": {
				MaxConcurrent: 40, Levels: []adaptive.LevelState{{Name: "high", ActiveCount: 2}, {Name: "low", QueuedCount: 3}},
				Mode: adaptive.Shadow, CurrentLimit: 64, ActiveCost: 8, ActiveCount: 2, VirtualQueuedCost: 9, VirtualQueuedCount: 3, LaneCount: 5,
				Utilization: .25, WouldAdmitCount: 11, WouldQueueCount: 12, WouldRejectCount: 13,
				StepCounts: map[adaptive.StepReason]int64{"steady": 14}, VirtualFanoutProbed: 10, VirtualFanoutSkipped: 4,
				Signal: adaptive.FromHeaders, HeadersAtOnce: true,
			}}
		},
		Streams: func() int64 { return 17 },
		Config: func() config.ReloadStatus {
			return config.ReloadStatus{Hash: "abc123", LastSuccess: true, At: time.Unix(1e9, 0), Count: 3, Failures: 1}
		},
		Leases:      func() lease.State { return lease.State{Pools: map[string]lease.PoolState{"pool": {Breaker: "open"}}} },
		Connections: func() map[string]int { return map[string]int{"pool": 4} },
	})
	return m
}

func TestAScrapeSaysWhatHappened(t *testing.T) {
	t.Parallel()
	got := scrape(t, everything(t), "text/plain")
	for _, want := range []string{
		`headgate_decisions_total{reason="admitted",route_cluster="chat"} 1`,
		`headgate_decisions_total{reason="queue_timeout",route_cluster="chat"} 1`,
		`headgate_admitted_bytes_total{route_cluster="chat"} 1000`,
		`headgate_refused_bytes_total{reason="queue_timeout",route_cluster="chat"} 500`,
		`headgate_would_reject_total{reason="payload_too_large",route_cluster="chat"} 1`,
		`headgate_decisions_idled_total{route_cluster="chat"} 1`,
		`headgate_decision_duration_seconds_bucket{route_cluster="chat",le="0.0025"} 2`,
		`headgate_byte_wait_duration_seconds_count{route_cluster="chat"} 1`,
		`headgate_lane_wait_duration_seconds_count{route_cluster="chat"} 1`,
		`headgate_first_byte_duration_seconds_sum{route_cluster="chat"} 0.3`,
		`headgate_streams 17`,
		`headgate_budget_used_bytes 111`,
		`headgate_budget_limit_bytes{source="cgroup"} 222`,
		`headgate_budget_ceiling_bytes 333`,
		`headgate_budget_heavy 5`,
		`headgate_budget_waiting_exchanges 6`,
		`headgate_budget_waiting_bytes 777`,
		`headgate_pressure_severity 2`,
		`headgate_pressure_memory_ratio{signal="memory_ratio"} 0.5`,
		`headgate_pressure_stall_percent{signal="psi_some"} 12`,
		`headgate_pressure_oom_events_total{signal="oom_kill"} 3`,
		`headgate_lane_limit{route_cluster="chat"} 64`,
		`headgate_lane_active_cost{route_cluster="chat"} 8`,
		`headgate_lane_active_exchanges{route_cluster="chat"} 2`,
		`headgate_lane_queued_cost{route_cluster="chat"} 9`,
		`headgate_lane_queued_exchanges{route_cluster="chat"} 3`,
		`headgate_lane_lanes{route_cluster="chat"} 5`,
		`headgate_lane_utilization_ratio{route_cluster="chat"} 0.25`,
		`headgate_lane_limit_steps_total{reason="steady",route_cluster="chat"} 14`,
		`headgate_lane_signal{route_cluster="chat",signal="headers"} 1`,
		`headgate_lane_signal{route_cluster="chat",signal="witness"} 0`,
		`headgate_lane_max_concurrent{route_cluster="chat"} 40`,
		`headgate_lane_level_active_exchanges{level="high",route_cluster="chat"} 2`,
		`headgate_lane_level_queued_exchanges{level="low",route_cluster="chat"} 3`,
		`headgate_lane_headers_at_once{route_cluster="chat"} 1`,
		`headgate_lane_shadow_decisions_total{outcome="queue",route_cluster="chat"} 12`,
		`headgate_lane_probes_total{outcome="admit",route_cluster="chat"} 6`,
		`headgate_lane_probes_total{outcome="skip",route_cluster="chat"} 4`,
		`headgate_lease_answers_total{action="check",outcome="VALID",pool="pool"} 1`,
		`headgate_lease_store_call_duration_seconds_count{result="error",script="check"} 1`,
		`headgate_lease_store_call_duration_seconds_count{result="ok",script="check"} 1`,
		`headgate_lease_lost_total{pool="pool",reason="TTL_EXPIRED"} 1`,
		`headgate_lease_lost_total{pool="pool",reason="STALE"} 0`, // a counter that began at 1 would not have increased
		`headgate_lease_lost_total{pool="pool",reason="MAX_HOLD"} 0`,
		`headgate_decisions_total{reason="body_exceeds_budget",route_cluster="chat"} 0`,
		`headgate_lease_expired_total{pool="pool"} 5`,
		`headgate_lease_connections{pool="pool",state="active"} 2`,
		`headgate_lease_connections{pool="pool",state="configured"} 4`,
		`headgate_lease_connections{pool="pool",state="cooldown"} 1`,
		`headgate_lease_pool_saturation_ratio{pool="pool"} 0.75`,
		`headgate_lease_breaker_state{pool="pool",state="open"} 1`,
		`headgate_lease_breaker_state{pool="pool",state="closed"} 0`,
		`headgate_config_reloads_total{result="failure"} 1`,
		`headgate_config_info{hash="abc123"} 1`,
		`headgate_config_last_reload_successful 1`,
		`headgate_config_last_reload_timestamp_seconds 1e+09`,
		`process_open_fds`,
		`go_goroutines`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in the scrape", want)
		}
	}
	if t.Failed() {
		t.Log(regexp.MustCompile(`(?m)^(go_|process_|# ).*\n`).ReplaceAllString(got, ""))
	}
}

// TestPromlint is what promtool check metrics does.
func TestPromlint(t *testing.T) {
	t.Parallel()
	problems, err := promlint.New(strings.NewReader(scrape(t, everything(t), "text/plain"))).Lint()
	if err != nil {
		t.Fatalf("lint: %v", err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestEveryInstrumentHasAUnitOrIsAStateAndADescription(t *testing.T) {
	t.Parallel()
	got := scrape(t, everything(t), "text/plain")
	help := regexp.MustCompile(`(?m)^# HELP (headgate_\S+) (.*)$`).FindAllStringSubmatch(got, -1)
	if len(help) < 40 {
		t.Errorf("%d metrics described, want all of at least 40", len(help))
	}
	for _, h := range help {
		if !strings.HasSuffix(h[2], ".") {
			t.Errorf("%s: description %q is no sentence", h[1], h[2])
		}
	}
}

func TestTenantsAddNoSeries(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	decide := func(i int) {
		m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "queue_timeout", Lane: fmt.Sprintf("lane_%016x", i), Took: time.Second, LaneWait: time.Second})
		m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "admitted", Lane: fmt.Sprintf("lane_%016x", i), Took: time.Second, LaneWait: time.Second})
	}
	decide(0)
	before := countSeries(scrape(t, m, "text/plain"))
	for i := range 50_000 {
		decide(i)
	}
	if after := countSeries(scrape(t, m, "text/plain")); after != before {
		t.Errorf("%d series after 50000 tenants, want %d as after one", after, before)
	}
	if n := len(m.Refusals()); n != recentRefusals {
		t.Errorf("%d refusals kept, want %d", n, recentRefusals)
	}
}

func countSeries(scrape string) int {
	return len(regexp.MustCompile(`(?m)^headgate_`).FindAllString(scrape, -1))
}

func TestTheHotPathAllocatesNothing(t *testing.T) {
	m := newMetrics(t)
	admitted := extproc.Decision{Cluster: "chat", Reason: "admitted", Bytes: 1000, Took: time.Millisecond, LaneWait: time.Millisecond, ByteWait: time.Millisecond}
	refused := admitted
	refused.Reason = "queue_timeout"
	o := m.LeaseObserver()
	step := func() {
		m.Decided(context.Background(), admitted)
		m.Decided(context.Background(), refused)
		m.FirstByte(context.Background(), "chat", time.Second)
		m.WouldReject("chat", "queue_timeout")
		o.Answer("check", "pool", "VALID")
		o.Call("check", time.Millisecond, nil)
	}
	step()
	if got := testing.AllocsPerRun(1000, step); got != 0 {
		t.Errorf("%v allocations for one of each, want 0", got)
	}
}

func TestExemplarsNameTheTrace(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	id := trace.TraceID{0xab, 1}
	config := trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}
	in := func() context.Context {
		return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(config))
	}
	d := extproc.Decision{Cluster: "chat", Reason: "admitted", Took: time.Second, LaneWait: time.Second, ByteWait: time.Second}
	m.Decided(in(), d)
	m.FirstByte(in(), "chat", time.Second)
	config.TraceID, config.TraceFlags = trace.TraceID{0xcd, 1}, 0
	m.Decided(in(), d)
	got := scrape(t, m, "application/openmetrics-text; version=1.0.0")
	for _, name := range []string{"headgate_decision_duration", "headgate_lane_wait_duration", "headgate_byte_wait_duration", "headgate_first_byte_duration"} {
		if !regexp.MustCompile(name + `_seconds_bucket.* # \{.*trace_id="` + id.String()).MatchString(got) {
			t.Errorf("%s has no exemplar of trace %s", name, id)
		}
	}
	if strings.Contains(got, config.TraceID.String()) {
		t.Errorf("an exemplar of the unsampled trace %s", config.TraceID)
	}
}

func TestRefusalsAreTheLastOnesNewestFirst(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	if n := len(m.Refusals()); n != 0 {
		t.Fatalf("%d refusals at first, want 0", n)
	}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{7}, SpanID: trace.SpanID{8}})
	for i := range recentRefusals + 3 {
		m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "queue_timeout", Bytes: int64(i), Waited: 2 * time.Second, Trace: parent})
	}
	m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: "client_gone"})
	got := m.Refusals()
	if len(got) != recentRefusals || got[0].Bytes != recentRefusals+2 || got[recentRefusals-1].Bytes != 3 {
		t.Errorf("%d refusals from %d to %d, want %d from %d to 3", len(got), got[0].Bytes, got[len(got)-1].Bytes, recentRefusals, recentRefusals+2)
	}
	if got[0].TraceID != parent.TraceID().String() || got[0].WaitMS != 2000 {
		t.Errorf("trace %q and %d ms, want %s and 2000", got[0].TraceID, got[0].WaitMS, parent.TraceID())
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	m := everything(t)
	var work sync.WaitGroup
	for g := range 4 {
		work.Go(func() {
			for i := range 200 {
				m.Decided(context.Background(), extproc.Decision{Cluster: fmt.Sprint("c", i%20), Reason: fmt.Sprint("r", g), Took: time.Millisecond})
				m.LeaseObserver().Answer("check", fmt.Sprint("p", i%5), "VALID")
			}
		})
	}
	for range 3 {
		scrape(t, m, "text/plain")
	}
	work.Wait()
	got := scrape(t, m, "text/plain")
	if want := `headgate_decisions_total{reason="r3",route_cluster="c7"} 10`; !strings.Contains(got, want) {
		t.Errorf("no %s in the scrape", want)
	}
}

func BenchmarkDecided(b *testing.B) {
	m := newMetrics(b)
	d := extproc.Decision{Cluster: "chat", Reason: "admitted", Bytes: 1000, Took: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		m.Decided(context.Background(), d)
	}
}

// TestExportedMetricsSayWhoTheyAreOf: what readers export names the service, as spans do.
func TestExportedMetricsSayWhoTheyAreOf(t *testing.T) {
	bare(t)
	reader := sdkmetric.NewManualReader()
	m, err := NewMetrics(MetricsOptions{Version: "1.2.3", Readers: []sdkmetric.Reader{reader}})
	if err != nil {
		t.Fatal(err)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	said := got.Resource.String()
	if !strings.Contains(said, "service.name=headgate") || !strings.Contains(said, "service.version=1.2.3") {
		t.Errorf("resource %q, want service.name headgate and service.version 1.2.3", said)
	}
	if err := m.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAMalformedResourceIsNoFaultWithoutExport: platforms set OTEL_RESOURCE_ATTRIBUTES for everybody.
func TestAMalformedResourceIsNoFaultWithoutExport(t *testing.T) {
	bare(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team")
	if _, err := NewMetrics(MetricsOptions{Version: "1"}); err != nil {
		t.Errorf("without a reader: %v, want no error", err)
	}
	if _, err := NewMetrics(MetricsOptions{Version: "1", Readers: []sdkmetric.Reader{sdkmetric.NewManualReader()}}); err == nil || !strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("with a reader: %v, want an error that names OTEL_RESOURCE_ATTRIBUTES", err)
	}
}

// TestNamesAreUniqueInOpenMetrics: a family's name there is that of its counter without "_total", and no other family may have it.
// (A strict parser that others wrote reads a whole page in test/sdk.)
func TestNamesAreUniqueInOpenMetrics(t *testing.T) {
	t.Parallel()
	page := scrape(t, crowd(t, 2), "application/openmetrics-text; version=1.0.0")
	seen := map[string]bool{}
	for line := range strings.Lines(page) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "TYPE" {
			continue
		}
		if seen[fields[2]] {
			t.Errorf("%s is the name of two families", fields[2])
		}
		seen[fields[2]] = true
	}
	if len(seen) < 50 || !strings.HasSuffix(page, "# EOF\n") {
		t.Errorf("%d families, want 50 at least and an end", len(seen))
	}
}
