package manifests

import (
	"context"
	"io"
	"net/http"
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

// measured serves the metrics of a sidecar in which everything has happened once, so that none is missing.
func measured(t *testing.T) http.Handler {
	t.Helper()
	m, err := telemetry.NewMetrics(telemetry.MetricsOptions{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Shutdown(t.Context()) })
	for _, reason := range []string{"admitted", "body_exceeds_budget", "client_gone"} {
		m.Decided(context.Background(), extproc.Decision{Cluster: "chat", Reason: reason, Bytes: 1, Took: 1, ByteWait: 1, LaneWait: 1, Idled: true})
	}
	m.FirstByte(context.Background(), "chat", time.Millisecond)
	m.WouldReject("chat", "payload_too_large")
	leases := m.LeaseObserver()
	leases.Answer("check", "pool", "VALID")
	leases.Call("check", time.Millisecond, io.ErrUnexpectedEOF)
	leases.Lost("pool", "TTL_EXPIRED")
	leases.Pool("pool", 1, 1, 1)
	m.Observe(telemetry.Sources{
		Bytes:   func() budget.Snapshot { return budget.Snapshot{BudgetSource: "cgroup"} },
		Signals: func() map[string]float64 { return map[string]float64{"memory_ratio": 0.5, "psi_some": 1, "oom": 1} },
		Lanes: func() map[string]adaptive.Snapshot {
			return map[string]adaptive.Snapshot{"chat": {
				Mode: adaptive.Shadow, StepCounts: map[adaptive.StepReason]int64{"steady": 1}, VirtualFanoutProbed: 1,
			}}
		},
		Streams:     func() int64 { return 1 },
		Config:      func() config.ReloadStatus { return config.ReloadStatus{Hash: "abc", At: time.Unix(1, 0)} },
		Leases:      func() lease.State { return lease.State{Pools: map[string]lease.PoolState{"pool": {Breaker: "open"}}} },
		Connections: func() map[string]int { return map[string]int{"pool": 2} },
		Sharing:     func() map[string]share.Status { return map[string]share.Status{"chat": {Members: 2}} },
	})
	return m.Handler()
}
