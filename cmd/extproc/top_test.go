package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/share"
	"github.com/headgate/headgate/pkg/telemetry"
)

func someHealth() admin.Health {
	return admin.Health{
		Status: "ok", Version: "1.2.3", UptimeSeconds: 3661, Exchanges: admin.Exchanges{InFlight: 17},
		ChatAdmission: budget.Snapshot{
			InflightBytes: 32 << 20, MaxInflightBytes: 128 << 20, BudgetSource: "cgroup", EffectiveCeiling: 4 << 30, ActiveHeavy: 3,
			Waiting: 2, QueuedBytes: 1536 << 10, ShedTotal: 9, PressureSeverity: "high", PressureReason: "memory_ratio", PressureValue: .871, PressureThreshold: .85,
		},
		AdaptiveAdmission: map[string]adaptive.Snapshot{
			"chat": {Mode: adaptive.Enforce, CurrentLimit: 64, ActiveCost: 60, ActiveCount: 6, Utilization: .94, LaneQueuedCost: 31, LaneQueuedCount: 3,
				LaneCount: 5, RejectedCount: 4, LastReason: "steady", Signal: adaptive.FromHeaders, HeadersAtOnce: true, LaneTenants: []adaptive.LaneTenant{{ID: "lane_0123456789abcdef", QueuedCount: 3, QueuedCost: 31}}},
			"evil\x1b[2J": {Mode: adaptive.Off},
		},
		Sharing: map[string]share.Status{
			"chat":  {Group: "engine", Members: 3, Limit: 93, Share: 41, AgeMS: 400, Parts: []share.Part{{Member: "b", Share: 31}, {Member: "c", Share: 21}}},
			"alone": {Group: "alone", Members: 1, Limit: 64, Share: 32, AgeMS: 9500, Stale: true},
		},
		Leases: &admin.Leases{Store: "embedded", Pools: map[string]admin.Pool{
			"accounts": {PoolState: lease.PoolState{Status: "ok", Breaker: "closed"}, Pool: telemetry.Pool{Active: 2, Cooldown: 1}, Connections: 4},
		}},
		RecentRefusals: []telemetry.Refusal{{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Cluster: "chat", Reason: "queue_timeout", Bytes: 5 << 20, WaitMS: 2000,
			TraceID: "0af7651916cd43dd8448eb211c80319c"}},
		Config: config.ReloadStatus{Hash: "abc123"}, Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}
}

func serveHealth(t *testing.T, h admin.Health) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/monitoring/health" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(h)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTopOnceIsForScripts(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	command := newCommand(strings.NewReader(""), &out, &errs)
	command.SetArgs([]string{"top", "--once", "--address", strings.TrimPrefix(serveHealth(t, someHealth()), "http://")})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("extproc top --once: %v", err)
	}
	for _, want := range []string{
		"Headgate 1.2.3  ok  up 1h1m1s  17 in flight  config abc123  03:04:06",
		"[##########..............................]  25 %  32.0 MiB of 128.0 MiB (cgroup, ceiling 4.0 GiB)",
		"3 heavy, 2 waiting for 1.5 MiB, 9 refused for bytes so far",
		"high: memory_ratio is 0.871, threshold 0.85",
		"chat      enforce  64     60           6       94 %         31           3       5      4        steady     headers (at once)",
		"chat                lane_0123456789abcdef  0       3        31",
		"accounts               ok      closed   4            2       1",
		"03:04:05    chat     queue_timeout  _default  5.0 MiB  2000 ms  0af7651916cd43dd8448eb211c80319c",
		"evil?[2J",
		"chat             engine  ok     3        93     41        31 21   0.4 s",
		"alone            alone   alone  1        64     32        -       9.5 s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("control characters in %q", out.String())
	}
}

func TestTopOnceFailsWithoutASidecar(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	if err := top(t.Context(), &bytes.Buffer{}, server.URL, time.Second, true); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v, want one that says 404", err)
	}
}

// screens is a terminal that hears when it has been drawn on.
type screens struct {
	mu    sync.Mutex
	text  strings.Builder
	drawn chan struct{}
}

func (s *screens) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.text.Write(p)
	s.mu.Unlock()
	select {
	case s.drawn <- struct{}{}:
	default:
	}
	return len(p), nil
}

func TestTopDrawsUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	screen := &screens{drawn: make(chan struct{}, 1)}
	done := make(chan error, 1)
	url := serveHealth(t, someHealth())
	go func() { done <- top(ctx, screen, url, 10*time.Millisecond, false) }()
	for range 2 {
		select {
		case <-screen.drawn:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing drawn for 10 s")
		}
	}
	interrupt()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("interrupted: error %v, want none", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("top goes on after the interrupt")
	}
	if n := strings.Count(screen.text.String(), cursorHome+"Headgate 1.2.3"); n < 2 {
		t.Errorf("%d screens drawn over each other, want at least 2", n)
	}
}

func TestHumanBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 50 << 20: "50.0 MiB", 2 << 30: "2.0 GiB", 3 << 40: "3.0 TiB", 5 << 50: "5120.0 TiB"} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
