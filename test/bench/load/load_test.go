package load

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestBodiesHaveTheirSizeAndAreJSON(t *testing.T) {
	t.Parallel()
	for _, shape := range Shapes() {
		body := shape.Body()
		if len(body) != shape.Bytes || shape.Bytes > 0 && !json.Valid([]byte(body)) {
			t.Errorf("%s: got %d bytes, JSON %v, want %d and valid", shape.Name, len(body), json.Valid([]byte(body)), shape.Bytes)
		}
	}
}

func TestRunCountsAnsweredRequests(t *testing.T) {
	t.Parallel()
	up, err := NewUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for _, shape := range Shapes()[:3] {
		r, err := Run(t.Context(), Options{Address: up.Addr(), Shape: shape, Connections: 2, Duration: 30 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if r.Requests < 2 || r.P50 <= 0 || r.P99 < r.P50 || r.Elapsed < 30*time.Millisecond {
			t.Errorf("%s: got %+v, want at least 2 requests, 0 < p50 <= p99, 30 ms", shape.Name, r)
		}
	}
}

func TestRunFailsOnRefusals(t *testing.T) {
	t.Parallel()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) }))
	defer refusing.Close()
	_, err := Run(t.Context(), Options{
		Address: strings.TrimPrefix(refusing.URL, "http://"), Shape: Shapes()[0], Connections: 2, Duration: time.Second,
	})
	if !errors.Is(err, errStatus) || !strings.Contains(err.Error(), "503: busy") {
		t.Errorf("got %v, want an unexpected status 503 with its body", err)
	}
}
