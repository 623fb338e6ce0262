package adaptive

import (
	"sync"
	"sync/atomic"
	"time"
)

// defaultMaxLanes is how many tenants one controller tells apart.
const defaultMaxLanes = 1000

// Controller limits one route cluster. All its state is behind one mutex, whose critical sections do no I/O, never
// block, and end with nothing waiting that could have been let in.
type Controller struct {
	off    atomic.Bool // mode is off: requests pass without touching the lock
	epoch0 time.Time   // what clock counts from

	mu       sync.Mutex
	settings Settings
	part     Settings // what the step gets: bounds divided among the replicas
	now      int64    // everything below is accounted up to here
	shutdown bool

	// active is what really runs. held is what the scheduler has let in: the same in enforce mode; in shadow mode those
	// that would have been admitted. When shadow ends, all that runs becomes held; permits from before that moment are
	// recognised by their epoch.
	active, held tally
	epoch        uint32

	waiting  tally // queued, over all lanes
	lanes    lanes
	levels   []*priorityLevel // the highest first; one where none are configured
	ranked   int              // flows with someone waiting who may be served
	reserved *Permit
	seq      uint64
	work     float64 // recent work and the cost it was for, decaying: their ratio prices a request ahead
	workCost float64

	deadlines deadlines
	expected  deadlines // of the first tokens that are not looked for
	timer     *time.Timer
	armed     int64 // when the timer fires; 0 = not set

	state  state
	window window
	curves [populations]curve
	counts counts
	signal Signal

	member member // of a group, if any

	headersAtOnce bool // with the signal headers: they say nothing

	retry    retry
	troubled bool // some lane has been refused, or failed, lately
}

// tally is a number of requests and their cost.
type tally struct{ count, cost int }

func (t *tally) add(cost int) { t.count++; t.cost += cost }
func (t *tally) sub(cost int) { t.count--; t.cost -= cost }

// counts only ever grow.
type counts struct {
	admitted, rejected                  int64
	wouldAdmit, wouldQueue, wouldReject int64
	probed, skipped                     int64
	steps                               map[StepReason]int64
}

// New makes a controller. The settings must be valid.
func New(s Settings) (*Controller, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return newController(s, defaultMaxLanes), nil
}

func newController(s Settings, maxLanes int) *Controller {
	c := &Controller{
		epoch0:   time.Now(),
		settings: s,
		part:     s.part(),
		lanes:    lanes{byID: make(map[string]*lane), max: max(1, maxLanes)},
		levels:   levelsOf(s, nil),
		counts:   counts{steps: make(map[StepReason]int64)},
		state:    state{limit: s.part().bounded(s.part().InitialLimit)},
	}
	c.window.end = int64(s.Window)
	for i := range c.curves {
		c.curves[i] = newCurve()
	}
	c.deadlines.reset(int64(s.MaxWait), 0)
	c.expected.reset(int64(expectedSpan), 0)
	c.off.Store(s.Mode == Off)
	return c
}

// clock is nanoseconds since the controller was made; it never goes back.
func (c *Controller) clock() int64 { return int64(time.Since(c.epoch0)) }

// Configure puts new settings into force, all or none. Permits, lanes, averages and counters survive; the limit is brought
// into the new bounds; waiters that a higher limit or another mode lets in start at once, and the last to come of those
// that no longer fit into a smaller queue are refused.
func (c *Controller) Configure(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c.configure(s)
	return nil
}

func (c *Controller) configure(s Settings) {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	old, oldPart := c.settings, c.part
	c.settings, c.part = s, s.part()
	c.off.Store(s.Mode == Off)
	if !c.member.on { // the next share of a group is from the new settings
		c.state.limit = c.part.bounded(c.state.limit)
	}
	if !c.member.on && c.part.InitialLimit != oldPart.InitialLimit {
		c.state.limit = c.part.bounded(c.part.InitialLimit)
	}
	if s.Window != old.Window {
		c.window.next(c.now + int64(s.Window))
	}
	if s.MaxWait != old.MaxWait {
		c.rewheelLocked()
	}
	c.relevelLocked()
	c.switchModeLocked(old.Mode, s.Mode)
	c.shrinkLocked()
	c.dispatchLocked()
}

// switchModeLocked lets everyone go whom the new mode would not have made wait.
func (c *Controller) switchModeLocked(from, to Mode) {
	if from == to {
		return
	}
	c.eachWaiterLocked(func(p *Permit) {
		if p.stage == stageWaiting {
			c.grantLocked(p)
			return
		}
		c.leaveLocked(p) // a virtual waiter: it runs already
	})
	if from == Shadow {
		c.epoch++
		c.holdAllLocked()
	}
}

// holdAllLocked counts all that runs as let in.
func (c *Controller) holdAllLocked() {
	c.held = c.active
	for _, v := range c.levels {
		v.held = v.active
	}
	c.lanes.each(func(l *lane) {
		l.held = l.active
		c.rankLocked(l)
	})
}

// Observe tells the severity of resource pressure. Critical lowers the limit at once, at most once per window.
func (c *Controller) Observe(s Severity) {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	w := &c.window
	w.severity, w.observed = s, c.now
	w.peak = max(w.peak, s)
	if s == Critical && c.settings.Mode != Off && !w.cutWithin(c.now, c.settings.Window) {
		w.lastCut, w.everCut = c.now, true
		c.state.limit = min(c.state.limit, max(c.part.MinLimit, scale(c.state.limit, c.settings.CriticalDecreaseFactor)))
		c.steppedLocked(StepCritical)
	}
	c.dispatchLocked() // the lanes' keys have moved with the time
}

// Shutdown refuses everyone who waits, and everyone who comes later in enforce mode. What runs goes on to its end.
func (c *Controller) Shutdown() {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	c.shutdown = true
	c.eachWaiterLocked(func(p *Permit) {
		c.leaveLocked(p)
		if p.stage == stageWaiting {
			c.refuseWaiterLocked(p, ShutDown)
		}
	})
	if c.timer != nil {
		c.timer.Stop()
		c.armed = 0
	}
}

// tick is the timer: it expires waiters, and evaluates windows that nothing else would while someone waits.
func (c *Controller) tick() {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = 0
	c.advanceLocked(now)
	c.expireLocked()
	c.dispatchLocked()
	if c.waiting.count > 0 {
		c.armLocked(min(c.deadlines.next(), c.window.end, c.nextExpectedLocked(), c.retry.next(c.now)))
	}
}

// expectedSpan is what a quarter of the wheel of expected first tokens spans; later ones share its slots.
const expectedSpan = 10 * time.Second

// armLocked makes the timer fire at t, unless it fires earlier anyway.
func (c *Controller) armLocked(t int64) {
	if c.armed != 0 && c.armed <= t {
		return
	}
	c.armed = t
	d := time.Duration(max(0, t-c.now))
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.tick)
		return
	}
	c.timer.Reset(d)
}
