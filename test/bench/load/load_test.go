package load

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
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

// TestPaceCountsFromWhenRequestsAreDue: an upstream that stands still for 300 ms delays what is due meanwhile, and all of it
// counts; a client that waits for its answer would have seen one slow request.
func TestPaceCountsFromWhenRequestsAreDue(t *testing.T) {
	t.Parallel()
	const stall = 300 * time.Millisecond
	var first sync.Once
	stalls := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { first.Do(func() { time.Sleep(stall) }) }))
	defer stalls.Close()
	r, err := Pace(t.Context(), Options{Address: strings.TrimPrefix(stalls.URL, "http://"), Shape: Shapes()[0], Connections: 1, Duration: stall * 4 / 3}, 200, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(dueTimes(200, stall*4/3, 1)); r.Requests != want || r.P99 < stall/2 || r.P50 < stall/10 {
		t.Errorf("got %d requests, p50 %v, p99 %v; want %d, most of them delayed", r.Requests, r.P50, r.P99, want)
	}
}

func TestPaceKeepsItsRate(t *testing.T) {
	t.Parallel()
	if got := len(dueTimes(1000, 10*time.Second, 7)); got < 9500 || got > 10500 {
		t.Errorf("got %d requests in 10 s, want about 1000 a second", got)
	}
}

func TestHTTP2IsSpoken(t *testing.T) {
	t.Parallel()
	var major, bytes atomic.Int64
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		n, _ := io.Copy(io.Discard, q.Body)
		major.Store(int64(q.ProtoMajor))
		bytes.Store(n)
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	defer up.Close()
	shape := Shapes()[2]
	r, err := Run(t.Context(), Options{Address: up.Listener.Addr().String(), Shape: shape, HTTP2: true, Connections: 2, Duration: 30 * time.Millisecond})
	if err != nil || r.Requests == 0 || major.Load() != 2 || bytes.Load() != int64(shape.Bytes) {
		t.Errorf("%+v, %v: HTTP/%d with %d bytes, want HTTP/2 with %d", r, err, major.Load(), bytes.Load(), shape.Bytes)
	}
}
