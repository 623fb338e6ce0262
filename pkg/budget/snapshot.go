package budget

import "github.com/headgate/headgate/pkg/budget/memory"

// Snapshot is the state of byte admission at one moment, as the health endpoint shows it. Keys are what the callers
// passed: opaque names, never credentials.
type Snapshot struct {
	ActiveHeavy           int              `json:"activeHeavy"`           // live holds in ordinary slots
	ActiveHealthyHeadroom int              `json:"activeHealthyHeadroom"` // live holds in headroom slots
	Waiting               int              `json:"waiting"`
	QueuedBytes           int64            `json:"queuedBytes"`
	ShedTotal             int64            `json:"shedTotal"`
	ShedsByReason         map[Reason]int64 `json:"shedsByReason"` // by what was lacking; reasons never met are absent
	InflightBytes         int64            `json:"inflightBytes"`
	MaxInflightBytes      int64            `json:"maxInflightBytes"`
	BudgetSource          memory.Source    `json:"budgetSource"`
	EffectiveCeiling      int64            `json:"effectiveCeiling"` // bytes
	PressureSeverity      string           `json:"pressureSeverity"` // normal, high or critical
	PressureReason        string           `json:"pressureReason"`   // the signal; empty when normal
	PressureValue         float64          `json:"pressureValue"`
	PressureThreshold     float64          `json:"pressureThreshold"`
	CountCapEnabled       bool             `json:"countCapEnabled"`
	Lanes                 []LaneSnapshot   `json:"lanes"` // keys with waiters, whose turn is next first
}

// LaneSnapshot is one key's share of the queue.
type LaneSnapshot struct {
	Key     string `json:"key"`
	Waiting int    `json:"waiting"`
}

// Snapshot returns the state now.
func (c *Controller) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pressure()
	s := Snapshot{
		ActiveHeavy:           c.active,
		ActiveHealthyHeadroom: c.headroom,
		Waiting:               c.queue.waiting,
		QueuedBytes:           c.queue.valve.bytes,
		ShedsByReason:         make(map[Reason]int64, len(c.sheds)),
		InflightBytes:         c.inflight,
		MaxInflightBytes:      c.budget.Bytes,
		BudgetSource:          c.budget.Source,
		EffectiveCeiling:      c.budget.Ceiling,
		PressureSeverity:      p.Severity.String(),
		PressureReason:        p.Signal,
		PressureValue:         p.Value,
		PressureThreshold:     p.Threshold,
		CountCapEnabled:       c.settings.HeavySlots != nil,
		Lanes:                 make([]LaneSnapshot, 0, len(c.queue.lanes)),
	}
	for r, n := range c.sheds {
		s.ShedsByReason[r] = n
		s.ShedTotal += n
	}
	for l := range c.queue.turns.all() {
		s.Lanes = append(s.Lanes, LaneSnapshot{Key: l.key, Waiting: l.waiting})
	}
	return s
}
