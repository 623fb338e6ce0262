package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc"
)

// What a scrape must cope with, and how fast.
const (
	manyClusters = 200
	manyLanes    = 1000
	scrapeLimit  = 50 * time.Millisecond
)

// crowd is a registry of many clusters in which many lanes have a waiter each, and metrics that read it.
func crowd(t testing.TB, waiting bool) *Metrics {
	t.Helper()
	m := newMetrics(t)
	s := adaptive.DefaultSettings()
	s.Mode, s.VirtualLanes = adaptive.Enforce, true
	s.MinLimit, s.InitialLimit, s.MaxLimit = 8, 8, 8
	s.MaxQueueCount, s.MaxQueueCost, s.MaxWait = 2*manyLanes, 20*manyLanes, time.Hour
	if !waiting {
		s.InitialLimit, s.MaxLimit = 100_000, 100_000
	}
	lanes := adaptive.NewRegistry(func(string) adaptive.Settings { return s }, manyLanes)
	t.Cleanup(lanes.Shutdown)
	for c := range manyClusters {
		cluster := fmt.Sprint("cluster-", c)
		permits := make([]adaptive.Permit, manyLanes)
		for l := range permits {
			lanes.Controller(cluster).Acquire(&permits[l], adaptive.Request{Lane: fmt.Sprintf("lane_%016x", l), Cost: 8})
		}
		for _, reason := range []string{"admitted", "client_gone", "queue_timeout", "admission_queue_full", "admission_deadline"} {
			m.Decided(extproc.Decision{Cluster: cluster, Reason: reason, Took: time.Millisecond, LaneWait: time.Millisecond})
		}
		m.FirstByte(cluster, time.Second, extproc.Decision{}.Trace)
	}
	m.Observe(Sources{Lanes: lanes.Snapshot})
	return m
}

// quickest is the best of some scrapes: the machine may be busy with other tests, the scrape is not quicker than it is.
func quickest(t testing.TB, m *Metrics) (best time.Duration, size int) {
	t.Helper()
	best = time.Hour
	for range 8 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		w := httptest.NewRecorder()
		began := time.Now()
		m.Handler().ServeHTTP(w, r)
		best, size = min(best, time.Since(began)), w.Body.Len()
	}
	return best, size
}

func TestAScrapeOfManyLanesIsQuick(t *testing.T) {
	if raceEnabled {
		t.Log("under the race detector the time says nothing; only that nothing races is checked")
	}
	for name, waiting := range map[string]bool{"all in flight": false, "all waiting": true} {
		took, size := quickest(t, crowd(t, waiting))
		t.Logf("%s: %v for %d KiB", name, took, size>>10)
		if took > scrapeLimit && !raceEnabled {
			t.Errorf("%s: a scrape of %d clusters with %d lanes each takes %v, want under %v", name, manyClusters, manyLanes, took, scrapeLimit)
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	m := crowd(b, false)
	b.ReportAllocs()
	for b.Loop() {
		scrape(b, m, "text/plain")
	}
}
