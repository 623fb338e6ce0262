package adaptive

import (
	"cmp"
	"slices"
)

// Snapshot is a controller at one moment. It names no tenant, request or payload: lanes appear under the opaque names the
// caller uses.
type Snapshot struct {
	Mode         Mode `json:"mode"`
	CurrentLimit int  `json:"currentLimit"`
	MinLimit     int  `json:"minLimit"`
	MaxLimit     int  `json:"maxLimit"`
	// MaxConcurrent bounds ActiveCount; 0 is no bound.
	MaxConcurrent int `json:"maxConcurrent"`

	ActiveCost  int `json:"activeCost"`
	ActiveCount int `json:"activeCount"`
	// Queued are those in the shared queue; with virtual lanes on they are counted under LaneQueued.
	QueuedCost  int `json:"queuedCost"`
	QueuedCount int `json:"queuedCount"`
	// Virtual is what would run and wait, in shadow mode.
	VirtualActiveCost  int `json:"virtualActiveCost"`
	VirtualActiveCount int `json:"virtualActiveCount"`
	VirtualQueuedCost  int `json:"virtualQueuedCost"`
	VirtualQueuedCount int `json:"virtualQueuedCount"`

	VirtualLanes    bool         `json:"virtualLanes"`
	LaneCount       int          `json:"laneCount"`
	LaneQueuedCount int          `json:"laneQueuedCount"`
	LaneQueuedCost  int          `json:"laneQueuedCost"`
	LaneTenants     []LaneTenant `json:"laneTenants"` // lanes with waiters, longest queue first

	// Levels are the priority levels, the highest first; none where none are configured.
	Levels []LevelState `json:"levels"`

	AdmittedCount    int64 `json:"admittedCount"`
	RejectedCount    int64 `json:"rejectedCount"`
	WouldAdmitCount  int64 `json:"wouldAdmitCount"`
	WouldQueueCount  int64 `json:"wouldQueueCount"`
	WouldRejectCount int64 `json:"wouldRejectCount"`

	// Latency per unit of cost, in milliseconds.
	ShortLatencyEWMA float64 `json:"shortLatencyEwma"`
	LongLatencyEWMA  float64 `json:"longLatencyEwma"`
	// Utilization of the last complete window, 0..1.
	Utilization float64              `json:"utilization"`
	Pressure    string               `json:"pressure"`
	LastReason  StepReason           `json:"lastReason"`
	StepCounts  map[StepReason]int64 `json:"stepCounts"`
	// Signal is where the first token of the latest response was looked for; empty before the first.
	Signal Signal `json:"signal"`
	// HeadersAtOnce says that the signal is the headers, and that these have come at once lately whatever the cost and the
	// load: latency says nothing then.
	HeadersAtOnce bool `json:"headersAtOnce"`

	VirtualFanoutProbed  int64 `json:"virtualFanoutProbed"`
	VirtualFanoutSkipped int64 `json:"virtualFanoutSkipped"`
	Shutdown             bool  `json:"shutdown"`
}

// LaneTenant is one lane's queue.
type LaneTenant struct {
	ID          string `json:"id"`
	ActiveCount int    `json:"activeCount"`
	QueuedCount int    `json:"queuedCount"`
	QueuedCost  int    `json:"queuedCost"`
}

// LevelState is a priority level. In shadow mode what waits is what would wait.
type LevelState struct {
	Name        string  `json:"name"`
	Share       float64 `json:"share"` // guaranteed part of the cluster, 0..1
	ActiveCost  int     `json:"activeCost"`
	ActiveCount int     `json:"activeCount"`
	QueuedCost  int     `json:"queuedCost"`
	QueuedCount int     `json:"queuedCount"`
}

// String is the severity's name in snapshots and labels.
func (s Severity) String() string {
	switch s {
	case Critical:
		return "critical"
	case High:
		return "high"
	}
	return "normal"
}

// Snapshot reports the state of now.
func (c *Controller) Snapshot() Snapshot {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.totalsLocked(now)
	c.tenantsLocked(&s)
	return s
}

// Totals is Snapshot without LaneTenants. What it costs does not grow with the number of lanes.
func (c *Controller) Totals() Snapshot {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.totalsLocked(now)
}

func (c *Controller) totalsLocked(now int64) Snapshot {
	c.advanceLocked(now)
	c.lanes.evict(c.now)
	s := Snapshot{
		Mode: c.settings.Mode, CurrentLimit: c.state.limit, MinLimit: c.part.MinLimit, MaxLimit: c.part.MaxLimit,
		ActiveCost: c.active.cost, ActiveCount: c.active.count, MaxConcurrent: c.part.MaxConcurrent,
		Levels:        []LevelState{},
		VirtualLanes:  c.settings.VirtualLanes,
		LaneTenants:   []LaneTenant{},
		AdmittedCount: c.counts.admitted, RejectedCount: c.counts.rejected,
		WouldAdmitCount: c.counts.wouldAdmit, WouldQueueCount: c.counts.wouldQueue, WouldRejectCount: c.counts.wouldReject,
		Utilization: c.window.utilization, Pressure: c.window.severity.String(), LastReason: c.window.lastReason, Signal: c.signal, HeadersAtOnce: c.headersAtOnce,
		ShortLatencyEWMA: c.state.level().short / 1e6, LongLatencyEWMA: c.state.level().long / 1e6,
		StepCounts:          make(map[StepReason]int64, len(c.counts.steps)),
		VirtualFanoutProbed: c.counts.probed, VirtualFanoutSkipped: c.counts.skipped, Shutdown: c.shutdown,
	}
	for reason, n := range c.counts.steps {
		s.StepCounts[reason] = n
	}
	if c.settings.Mode == Shadow {
		s.VirtualActiveCost, s.VirtualActiveCount = c.held.cost, c.held.count
		s.VirtualQueuedCost, s.VirtualQueuedCount = c.waiting.cost, c.waiting.count
	}
	if len(c.settings.Levels) > 0 {
		for _, v := range c.levels {
			s.Levels = append(s.Levels, LevelState{
				Name: v.name, Share: v.share,
				ActiveCost: v.active.cost, ActiveCount: v.active.count, QueuedCost: v.waiting.cost, QueuedCount: v.waiting.count,
			})
		}
	}
	c.countLanesLocked(&s)
	return s
}

func (c *Controller) countLanesLocked(s *Snapshot) {
	real := c.settings.Mode == Enforce
	if !c.settings.VirtualLanes {
		if real {
			s.QueuedCost, s.QueuedCount = c.waiting.cost, c.waiting.count
		}
		return
	}
	s.LaneCount = len(c.lanes.byID)
	if c.lanes.overflow != nil && c.lanes.overflow.refs > 0 {
		s.LaneCount++
	}
	if real {
		s.LaneQueuedCost, s.LaneQueuedCount = c.waiting.cost, c.waiting.count
	}
}

// tenantsLocked lists the lanes with waiters.
func (c *Controller) tenantsLocked(s *Snapshot) {
	if !c.settings.VirtualLanes || c.settings.Mode != Enforce || c.waiting.count == 0 {
		return
	}
	c.lanes.each(func(l *lane) {
		if l.queued > 0 {
			s.LaneTenants = append(s.LaneTenants, LaneTenant{ID: l.id, ActiveCount: l.active, QueuedCount: l.queued, QueuedCost: l.queuedCost})
		}
	})
	slices.SortFunc(s.LaneTenants, func(a, b LaneTenant) int {
		return cmp.Or(cmp.Compare(b.QueuedCount, a.QueuedCount), cmp.Compare(a.ID, b.ID))
	})
}
