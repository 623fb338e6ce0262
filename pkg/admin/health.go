package admin

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
)

// Health is the document at /api/monitoring/health.
type Health struct {
	Status            string                       `json:"status"` // ok, draining, or degraded
	Version           string                       `json:"version"`
	UptimeSeconds     int64                        `json:"uptimeSeconds"`
	Exchanges         Exchanges                    `json:"exchanges"`
	ChatAdmission     budget.Snapshot              `json:"chatAdmission"`
	AdaptiveAdmission map[string]adaptive.Snapshot `json:"adaptiveAdmission"` // by route cluster
	Leases            any                          `json:"leases,omitempty"`
	Config            config.ReloadStatus          `json:"config"`
	Time              time.Time                    `json:"time"`
}

// Exchanges counts what the processor serves.
type Exchanges struct {
	InFlight int64 `json:"inFlight"` // HTTP exchanges with an open stream
}
