package adaptive

import (
	"math"
	"time"
)

// A member of a group is one of several controllers before the same upstreams. It does not learn its limit itself: it reports
// what it has seen, and gets a part of the limit that the group learns from all reports (see Learner). Package share carries
// reports and parts between members.

// Report is what a member has seen since its last report, and what it needs.
type Report struct {
	Evidence Evidence
	Lanes    []LaneReport // those with anything running, waiting or done since the last report, in no order
	Most     int          // the largest part that pressure on this member allows; 0 is no bound
	Limit    int          // the part in force
}

// LaneReport is a lane's demand and work in one member.
type LaneReport struct {
	Key    LaneKey
	Weight float64
	Demand float64 // cost that runs, or ran on average since the last report if that is more, and cost that waits
	Work   float64 // cost-seconds by weight since the lane exists in this member
}

// LaneKey names a lane among members: a hash of its name. Members agree about it where they agree about the names of lanes.
type LaneKey uint64

// KeyOf is the key of a lane's name, by FNV-1a.
func KeyOf(name string) LaneKey {
	key := uint64(14695981039346656037)
	for i := range len(name) {
		key = (key ^ uint64(name[i])) * 1099511628211
	}
	return LaneKey(key)
}

// Share is a member's part of the group's limit.
type Share struct {
	Limit     int      // in force until the next share
	Members   int      // of the group, this one included, or how many there should be if that is more
	Group     *Learner // what the group has learned
	Elsewhere []LaneReport
	Valid     time.Duration // without another share for so long, the member goes on alone
}

const (
	// holdWindows is for how long a member that hears nothing keeps to its last share.
	holdWindows = 30
	// decayWindows is over how many windows it then goes from there to an equal part of the last limit, and in so many more to its
	// part of the initial one, if that is more.
	decayWindows = 60
)

// member is a controller's place in a group.
type member struct {
	on      bool
	alone   bool // the share is not valid any more
	at      int64
	valid   int64
	share   int
	top     int // the highest limit so far, while alone
	members int
	whole   float64 // the group's limit
	version uint64  // of what the group had learned
	epoch   uint32  // see Learner
	most    int     // bound by pressure on this member; 0 = none

	reported int64
	spent    map[*lane]float64 // work at the last report
}

// inForce reports whether the limit is the group's to say.
func (m *member) inForce(now int64) bool { return m.on && now-m.at <= m.valid }

// ceiling is the highest limit of a member that has heard nothing for long enough to be alone.
func (m *member) ceiling(s Settings, now int64) int {
	equal := m.whole / float64(m.members)
	static := max(equal, float64(s.InitialLimit)/float64(m.members))
	passed := (float64(now-m.at-m.valid)/float64(s.Window) - holdWindows) / decayWindows
	between := func(from, to, share float64) float64 { return from + min(max(share, 0), 1)*(to-from) }
	return max(1, int(between(between(float64(m.share), equal, passed), static, passed-1)))
}

// Report takes what has been seen since the last report.
func (c *Controller) Report() Report {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	c.lanes.evict(c.now)
	r := Report{Evidence: c.evidenceLocked(), Most: c.pressedLocked(), Limit: c.state.limit}
	r.Lanes = c.laneReportsLocked()
	if c.member.inForce(c.now) {
		c.endWindowLocked()
	}
	return r
}

// endWindowLocked ends the window of a member whose evidence others have taken in. While it learns for itself, windows end by time.
func (c *Controller) endWindowLocked() {
	if c.window.capacity > 0 {
		c.window.utilization = c.window.busy / c.window.capacity
	}
	c.window.next(c.now + int64(c.settings.Window))
	for i := range c.curves {
		c.curves[i].forget()
	}
}

// pressedLocked moves the bound that pressure on this process sets, which is nothing to the other members. Critical pressure has
// lowered the limit when it was sampled.
func (c *Controller) pressedLocked() int {
	m, w := &c.member, &c.window
	switch {
	case w.peak == Critical:
		m.most = max(1, c.state.limit)
	case w.peak == High:
		m.most = max(1, scale(c.state.limit, c.settings.DecreaseFactor))
	case w.strained(c.now) || m.most == 0:
	case m.most >= m.share && m.most >= c.state.limit:
		m.most = 0
	default:
		m.most += max(c.settings.recovery(), m.most/10)
	}
	return m.most
}

func (c *Controller) laneReportsLocked() []LaneReport {
	m := &c.member
	period := seconds(c.now - m.reported)
	m.reported = c.now
	before := m.spent
	m.spent = make(map[*lane]float64, len(before))
	reports := make([]LaneReport, 0, len(before))
	c.lanes.each(func(l *lane) {
		work, running, waiting := l.worked(c.now)
		last, known := before[l]
		if !known && before == nil {
			last = work
		}
		m.spent[l] = work
		if period > 0 {
			running = max(running, (work-last)*l.weight/period)
		}
		if c.fullLocked() {
			waiting = 0 // a higher limit would let nobody in
		}
		if demand := running + waiting; demand > 0 {
			reports = append(reports, LaneReport{Key: KeyOf(l.id), Weight: max(l.weight, leastWeight), Demand: demand, Work: work})
		}
	})
	return reports
}

// SetShare puts a share into force.
func (c *Controller) SetShare(s Share) {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	m := &c.member
	if !m.inForce(c.now) {
		c.endWindowLocked()
	}
	m.on, m.alone, m.at, m.valid, m.share, m.members = true, false, c.now, int64(s.Valid), s.Limit, max(1, s.Members)
	c.adoptLocked(s.Group)
	c.state.limit = max(1, s.Limit)
	if m.most > 0 {
		c.state.limit = max(1, min(c.state.limit, m.most))
	}
	if s.Group.version != m.version {
		m.version = s.Group.version
		c.steppedLocked(s.Group.reason)
	}
	c.chargeElsewhereLocked(s.Elsewhere)
	c.dispatchLocked()
}

// AtMost lowers the limit of a member at once, before it offers the rest to the others.
func (c *Controller) AtMost(limit int) {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	if m := &c.member; m.inForce(c.now) {
		m.share = min(m.share, max(1, limit))
		c.state.limit = min(c.state.limit, max(1, limit))
	}
}

// adoptLocked takes what the group has learned for what this member knows: it predicts first tokens from it, and goes on from there
// when it is alone.
func (c *Controller) adoptLocked(g *Learner) {
	m := &c.member
	m.whole = float64(g.state.limit)
	c.state = g.state
	for i := range c.curves {
		c.curves[i].adopt(&g.curves[i])
	}
	if g.epoch == m.epoch {
		return
	}
	m.epoch = g.epoch
	c.window.shedAt = c.now
	clear(c.window.fresh[:])
	for i := range c.curves {
		c.curves[i].forget()
	}
}

// LeaveGroup has the controller learn for itself again.
func (c *Controller) LeaveGroup() {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	if c.member.on {
		c.goAloneLocked()
		c.member = member{}
		c.state.limit = c.part.bounded(c.state.limit)
		c.dispatchLocked()
	}
}

// goAloneLocked makes what the group has learned of its limit a knowledge of this member's part.
func (c *Controller) goAloneLocked() {
	if c.member.alone {
		return
	}
	c.member.alone, c.member.top = true, c.state.limit
	c.state.scaleTo(c.state.limit, c.member.whole)
}

// scaleTo makes a state of a whole limit one of a part of it, between two trials.
func (st *state) scaleTo(limit int, whole float64) {
	share := float64(limit) / max(1, whole)
	st.limit = limit
	st.trial, st.found = trial{}, true
	st.proven = max(st.proven, provenWindows) // a search of one member would tell it little of the limit of all
	st.right = int(math.Round(float64(st.right) * share))
	st.growth.stop(limit, limit)
}

// aloneLocked are the settings of the step of a member that hears nothing.
func (c *Controller) aloneLocked() Settings {
	s := c.part
	if m := &c.member; m.on {
		c.goAloneLocked()
		s.MaxLimit = m.ceiling(c.settings, c.now)
		if c.state.limit >= m.top { // nothing spoke against it so far
			c.state.limit = s.MaxLimit
		}
		m.top = s.MaxLimit
		s.MinLimit = min(s.MinLimit, s.MaxLimit)
		s.InitialLimit = s.bounded(s.InitialLimit)
	}
	return s
}

// debtWindows bounds how far a lane's work elsewhere takes it ahead here, in what the whole limit does in so many windows: one
// that has had much there, and then comes here only, is not locked out for as long.
const debtWindows = 10

// chargeElsewhereLocked has the lanes' virtual times advance by their work in other members.
func (c *Controller) chargeElsewhereLocked(reports []LaneReport) {
	if len(reports) == 0 {
		return
	}
	work := make(map[LaneKey]float64, len(reports))
	var all float64
	for _, r := range reports {
		work[r.Key] += r.Work
		all += r.Work
	}
	for _, v := range c.levels {
		if v.ranked == 0 {
			v.virtual += all // what nobody else wants makes no debts
		}
	}
	horizon := c.member.whole * debtWindows * c.settings.Window.Seconds()
	c.lanes.each(func(l *lane) {
		if more := work[KeyOf(l.id)]; more > 0 {
			for f := l.flows; f != nil; f = f.next {
				f.charge(more, f.level.virtual+horizon, c.now)
			}
		}
	})
}

// charge adds work to the account, as far as that does not take it beyond a virtual time.
func (f *flow) charge(work, most float64, now int64) {
	f.base += max(0, min(work, most-f.virtual(now)))
	if f.ranked {
		f.level.order.fix(f, f.virtual(now))
	}
}
