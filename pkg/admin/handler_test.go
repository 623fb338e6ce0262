package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is the admin handler with a document that names the moment.
func served(t *testing.T, ready error) (*httptest.Server, *Board) {
	t.Helper()
	health := func() Health {
		return Health{
			Status: "ok", Version: "1", Time: time.Now().UTC(), ChatAdmission: budget.Snapshot{Lanes: make([]budget.LaneSnapshot, 3*pageLanes)},
			AdaptiveAdmission: map[string]adaptive.Snapshot{"chat": {LaneTenants: make([]adaptive.LaneTenant, 3*pageLanes)}},
		}
	}
	board, err := NewBoard(BoardOptions{Health: health, Lanes: func() map[string]adaptive.Snapshot { return map[string]adaptive.Snapshot{"chat": {CurrentLimit: 64}} }})
	if err != nil {
		t.Fatalf("board: %v", err)
	}
	server := httptest.NewServer(Handler(Sources{
		Hosts: func() []string { return nil },
		Ready: func() error { return ready }, Health: health, Board: board,
		Config:  func() ([]byte, error) { return []byte("listen: {}\n"), nil },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
		Operate: http.NotFoundHandler(),
		LaneOf:  func(tenant string) string { return "lane of " + tenant },
		Leases:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "leases") }),
	}))
	t.Cleanup(func() {
		board.Close()
		http.DefaultClient.CloseIdleConnections()
		server.Close()
	})
	return server, board
}

func ask(t *testing.T, url string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatalf("make a request: %v", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("get %s: %v", url, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func TestEndpoints(t *testing.T) {
	ready, _ := served(t, nil)
	draining, _ := served(t, errors.New("draining"))
	for _, c := range []struct {
		name, url string
		status    int
		kind      string
		contains  string
	}{
		{"alive", ready.URL + "/livez", 200, "text/plain", "ok"},
		{"ready", ready.URL + "/readyz", 200, "text/plain", "ready"},
		{"alive while draining", draining.URL + "/livez", 200, "text/plain", "ok"},
		{"not ready while draining", draining.URL + "/readyz", 503, "text/plain", "draining"},
		{"health", ready.URL + "/api/monitoring/health", 200, "application/json", `"chatAdmission"`},
		{"configuration", ready.URL + "/config", 200, "application/yaml", "listen"},
		{"metrics", ready.URL + "/metrics", 200, "", "metrics"},
		{"page", ready.URL + "/", 200, "text/html", "<title>Headgate</title>"},
		{"profiles", ready.URL + "/debug/pprof/", 200, "text/html", "goroutine"},
		{"something else", ready.URL + "/nothing", 404, "", ""},
	} {
		response := ask(t, c.url)
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != c.status || !strings.HasPrefix(response.Header.Get("Content-Type"), c.kind) || !strings.Contains(string(body), c.contains) {
			t.Errorf("%s: %d %s, error %v, %.60q; want %d %s with %q", c.name, response.StatusCode, response.Header.Get("Content-Type"), err, body, c.status, c.kind, c.contains)
		}
	}
}

// event is one server-sent event.
type event struct{ name, data string }

func nextEvent(t *testing.T, r *bufio.Reader) event {
	t.Helper()
	var e event
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("read an event: %v", err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "":
			return e
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		}
	}
}

func TestEventsBringTheDocumentAndThePoints(t *testing.T) {
	server, board := served(t, nil)
	board.history.add(board.o.Lanes())
	response := ask(t, server.URL+"/events")
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("content type %q, want text/event-stream", kind)
	}
	r := bufio.NewReader(response.Body)

	// first the history, with the point that has been taken
	first := nextEvent(t, r)
	var begun past
	if err := json.Unmarshal([]byte(first.data), &begun); err != nil || first.name != "history" || len(begun.Lanes["chat"]) != 1 || begun.Lanes["chat"][0].Limit != 64 {
		t.Errorf("first %s %s, error %v; want a history of one point with the limit 64", first.name, first.data, err)
	}
	// then documents, with the longest queues only
	second := nextEvent(t, r)
	var h Health
	if err := json.Unmarshal([]byte(second.data), &h); err != nil || second.name != "health" {
		t.Fatalf("second %s, error %v; want a health document", second.name, err)
	}
	if a, b := len(h.ChatAdmission.Lanes), len(h.AdaptiveAdmission["chat"].LaneTenants); a != pageLanes || b != pageLanes {
		t.Errorf("%d and %d lanes, want %d each", a, b, pageLanes)
	}
	// then a point when one is taken, before the next document
	board.history.add(board.o.Lanes())
	if third, fourth := nextEvent(t, r), nextEvent(t, r); third.name != "point" || fourth.name != "health" {
		t.Errorf("then %s and %s, want a point and a health document", third.name, fourth.name)
	}
	// and the end when the board closes
	board.Close()
	board.Close()
	if rest, err := io.ReadAll(r); err != nil {
		t.Errorf("after the close: %.40q and %v, want the end", rest, err)
	}
}

func TestEventStreamsAreBoundedAndLeave(t *testing.T) {
	server, board := served(t, nil)
	var leave []context.CancelFunc
	for range eventStreams {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leave = append(leave, cancel)
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("open a stream: %v, %v", response, err)
		}
		defer func() { _ = response.Body.Close() }()
	}
	if response := ask(t, server.URL+"/events"); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("stream %d: status %d, want 503", eventStreams+1, response.StatusCode)
	}
	for _, cancel := range leave {
		cancel()
	}
	for range 1000 {
		if len(board.streams) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d streams open after all have left, want 0", len(board.streams))
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var h history
	all := map[string]adaptive.Snapshot{}
	for i := range 3 * historyClusters {
		all[fmt.Sprintf("c%04d", i)] = adaptive.Snapshot{}
	}
	for i := range historyPoints + 10 {
		all["c0000"] = adaptive.Snapshot{CurrentLimit: i, ActiveCost: 3, QueuedCost: 1, LaneQueuedCost: 2, Utilization: .5}
		h.add(all)
	}
	byCluster, taken := h.all()
	points := byCluster["c0000"]
	if len(byCluster) != historyClusters || taken != historyPoints+10 || len(points) != historyPoints {
		t.Fatalf("%d clusters, %d taken, %d points; want %d, %d, %d", len(byCluster), taken, len(points), historyClusters, historyPoints+10, historyPoints)
	}
	if first, last := points[0], points[historyPoints-1]; first.Limit != 10 || last != (point{historyPoints + 9, 3, 3, .5}) {
		t.Errorf("points from %+v to %+v, want from the limit 10 to %d", first, last, historyPoints+9)
	}
	delete(all, "c0000")
	h.add(all)
	if byCluster, _ := h.all(); byCluster["c0000"] != nil {
		t.Errorf("%d points of a cluster that is gone, want none", len(byCluster["c0000"]))
	}
}

func TestRunTakesPoints(t *testing.T) {
	_, board := served(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); board.Run(ctx) }()
	for range 1000 {
		if latest, taken := board.history.last(); taken > 0 {
			if latest["chat"].Limit != 64 {
				t.Errorf("limit %d, want 64", latest["chat"].Limit)
			}
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	<-done
	if _, taken := board.history.last(); taken == 0 {
		t.Error("no point taken")
	}
}

func TestNewLeases(t *testing.T) {
	t.Parallel()
	l := NewLeases(lease.State{Status: "degraded", Store: "single", Pools: map[string]lease.PoolState{"a": {Status: "degraded", Breaker: "open", Error: "refused"}, "b": {Status: "ok"}}},
		map[string]telemetry.Pool{"a": {Active: 3, Cooldown: 1}, "gone": {Active: 9}}, map[string]int{"a": 5, "b": 2})
	encoded, err := json.Marshal(l)
	want := `{"status":"degraded","store":"single","pools":{` +
		`"a":{"status":"degraded","breaker":"open","error":"refused","active":3,"cooldown":1,"connections":5},` +
		`"b":{"status":"ok","breaker":"","active":0,"cooldown":0,"connections":2}}}`
	if err != nil || string(encoded) != want {
		t.Errorf("got %s, error %v\nwant %s", encoded, err, want)
	}
}

// TestLaneOfATenant: the tenant is in the body, and has to be there.
func TestLaneOfATenant(t *testing.T) {
	server, _ := served(t, nil)
	for body, want := range map[string]string{
		"team-a": "200 lane of team-a", "": "400 the body must be", " \n": "400 the body must be", strings.Repeat("x", maxTenant+1): "400 the body must be",
	} {
		response, err := http.Post(server.URL+"/api/monitoring/lane", "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if answer := fmt.Sprintf("%d %s", response.StatusCode, got); !strings.HasPrefix(answer, want) {
			t.Errorf("%.20q: %q, want %q", body, answer, want)
		}
	}
}
