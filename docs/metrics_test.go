package docs

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/share"
	"github.com/headgate/headgate/pkg/telemetry"
)

var metric = regexp.MustCompile(`\bheadgate_[a-z0-9_]+\b`)

// TestMetricsExist: every metric that a page names is served.
func TestMetricsExist(t *testing.T) {
	served := scrape(t)
	n := 0
	for _, page := range pages(t) {
		for _, text := range code(t, page) {
			for _, name := range metric.FindAllString(text, -1) {
				n++
				family := name
				for _, part := range []string{"_bucket", "_count", "_sum"} {
					family = strings.TrimSuffix(family, part)
				}
				if !strings.Contains(served, "\n# TYPE "+name+" ") && !strings.Contains(served, "\n# TYPE "+family+" histogram") {
					t.Errorf("%s names %s, which nobody serves", page, name)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("%d metrics named, want at least 30", n)
	}
}

// scrape is what a sidecar serves that has seen something of everything.
func scrape(t *testing.T) string {
	t.Helper()
	m, err := telemetry.NewMetrics(telemetry.MetricsOptions{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	m.Observe(telemetry.Sources{
		Bytes:   func() budget.Snapshot { return budget.Snapshot{} },
		Signals: func() map[string]float64 { return map[string]float64{"memory_ratio": 0.5, "psi_some": 1, "oom": 1} },
		Lanes: func() map[string]adaptive.Snapshot {
			return map[string]adaptive.Snapshot{"chat": {
				Mode: adaptive.Shadow, StepCounts: map[adaptive.StepReason]int64{adaptive.StepGrow: 1}, VirtualFanoutProbed: 1,
				Signal: adaptive.FromHeaders, MaxConcurrent: 1, Levels: []adaptive.LevelState{{Name: "high"}},
			}}
		},
		Streams: func() int64 { return 1 },
		Config:  func() config.ReloadStatus { return config.ReloadStatus{Count: 1, At: time.Now()} },
		Leases: func() lease.State {
			return lease.State{Pools: map[string]lease.PoolState{"chat": {Breaker: "closed"}}}
		},
		Connections: func() map[string]int { return map[string]int{"chat": 1} },
		Sharing:     func() map[string]share.Status { return map[string]share.Status{"chat": {Members: 2}} },
	})
	for _, reason := range []string{"admitted", "queue_timeout"} {
		m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: reason, ByteWait: time.Second, LaneWait: time.Second, Idled: true})
	}
	m.FirstByte(context.Background(), "chat", time.Second)
	m.WouldReject("chat", "queue_timeout")
	l := m.LeaseObserver()
	l.Answer("check", "chat", "VALID")
	l.Call("check", time.Millisecond, nil)
	l.Lost("chat", "STALE")
	l.Pool("chat", 1, 0, 0)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return "\n" + w.Body.String()
}
