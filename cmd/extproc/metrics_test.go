package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/config"
)

// TestMetricsPortServesNothingElse: who may scrape may not read the configuration, profiles or the status page.
func TestMetricsPortServesNothingElse(t *testing.T) {
	a, err := newApp(config.Default(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	for path, want := range map[string]int{
		"/metrics": 200, "/": 404, "/config": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404, "/livez": 404, "/readyz": 404,
		"/api/monitoring/health": 404, "/v1/session-leases": 404, "/events": 404,
	} {
		w := httptest.NewRecorder()
		a.metricsOnly().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://10.1.2.3:9005"+path, nil))
		if w.Code != want {
			t.Errorf("GET %s: %d, want %d", path, w.Code, want)
		}
		if path == "/metrics" && !strings.Contains(w.Body.String(), "headgate_build_info") {
			t.Errorf("/metrics lacks headgate_build_info: %.200s", w.Body)
		}
	}
}
