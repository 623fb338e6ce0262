package share

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// dueShare is the share of a window after which a state is due for the next step: members' windows are not quite alike.
const dueShare = 0.9

// Member is one sidecar's place in a group.
type Member struct {
	id         string
	group      string
	controller *adaptive.Controller
	store      Store
	settings   func() adaptive.Settings

	// Of the goroutine that runs it.
	learner *adaptive.Learner // the last known; nil before the first answer
	others  []need            // as of the last answer
	claimed float64           // share of the group's limit that was claimed last
	works   map[string]map[adaptive.LaneKey]float64

	mu       sync.Mutex
	status   Status
	answerAt time.Time
}

// Status is what a member knows of its group.
type Status struct {
	Group    string `json:"group"`
	Members  int    `json:"members"` // as of the last answer, this one included
	Limit    int    `json:"limit"`   // of all of them together; 0 before the first answer
	Share    int    `json:"share"`   // of this member
	Reason   string `json:"lastReason,omitempty"`
	Parts    []Part `json:"parts"`    // of the other members
	AgeMS    int64  `json:"ageMs"`    // of the last answer; 0 before the first
	Stale    bool   `json:"stale"`    // the store has not answered for three windows, so that the share is not valid any more
	Failures int64  `json:"failures"` // exchanges without an answer
	Error    string `json:"lastError,omitempty"`
}

// Part is another member's part.
type Part struct {
	Member string `json:"member"`
	Share  int    `json:"share"`
	AgeMS  int64  `json:"ageMs"` // of its record
}

// NewMember makes a member of a group. settings are those of the controller, as they are at the time.
func NewMember(group string, c *adaptive.Controller, s Store, settings func() adaptive.Settings) *Member {
	return &Member{
		id: rand.Text()[:12], group: group, controller: c, store: s, settings: settings,
		works: make(map[string]map[adaptive.LaneKey]float64), status: Status{Group: group},
	}
}

// Run exchanges once a window until ctx ends, then leaves the group.
func (m *Member) Run(ctx context.Context) {
	defer m.leave()
	for {
		window := m.settings().Window
		first := m.learner == nil
		m.exchange(ctx, window)
		if first && m.learner != nil { // now that the others are known
			m.exchange(ctx, window)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(window):
		}
	}
}

func (m *Member) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = m.store.Leave(ctx, m.group, m.id) // it is gone soon anyway
	m.controller.LeaveGroup()
}

// exchange is one window's.
func (m *Member) exchange(ctx context.Context, window time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, max(window/2, 50*time.Millisecond))
	defer cancel()
	s := m.settings()
	s.Replicas = max(1, s.Replicas)
	own := newRecord(m.controller.Report())
	claim := m.claim(s, &own, window)
	m.controller.AtMost(claim.Want)
	v, err := m.store.Exchange(ctx, m.group, claim)
	if err != nil {
		m.failed(err)
		return
	}
	learner, step := m.learn(s, v, &own)
	if step != nil {
		if ok, err := m.store.Commit(ctx, m.group, *step); err != nil || !ok {
			learner = m.known(s, v)
		}
	}
	m.learner = learner
	m.others = m.others[:0]
	for _, o := range v.Others {
		if r, err := decode(o.Record); err == nil {
			m.others = append(m.others, need{o.Member, &r})
		}
	}
	if v.State != nil {
		m.claimed = float64(v.Granted) / float64(max(1, m.known(s, v).Limit()))
	}
	share := min(v.Granted, m.want(m.part(s, &own), s.MaxLimit))
	m.controller.SetShare(adaptive.Share{
		Limit: share, Members: max(1+len(v.Others), s.Replicas), Group: learner, Elsewhere: m.elsewhere(), Valid: validWindows * window,
	})
	m.answered(v, share)
}

// claim is what the member asks for, from its own needs of now and the others' as they were a window ago.
func (m *Member) claim(s adaptive.Settings, own *record, window time.Duration) Claim {
	c := Claim{
		Member: m.id, Record: own.encode(), Want: 1, Floor: 1, Window: window,
		Most: s.MaxLimit, Limit: s.InitialLimit, Replicas: s.Replicas, Part: s.MaxLimit / s.Replicas,
	}
	if m.learner != nil {
		n := 1 + len(m.others)
		c.Limit = m.learner.Limit()
		c.Want, c.Floor = m.want(m.part(s, own), s.MaxLimit), floorOf(float64(c.Limit), n)
		c.Alone = max(c.Want, c.Limit/max(n, s.Replicas), s.InitialLimit/max(n, s.Replicas))
	}
	return c
}

// want is what to claim when the part should be another: a part that is a little smaller is left as it is, since others would take
// what is given up only a window later.
func (m *Member) want(part, most int) int {
	if before := int(m.claimed * float64(m.learner.Limit())); part < before && float64(part) >= keepShare*float64(before) {
		return min(before, most)
	}
	return part
}

// keepShare is how much smaller a part becomes before it is claimed anew.
const keepShare = 0.9

// part of the last known limit that is this member's.
func (m *Member) part(s adaptive.Settings, own *record) int {
	needs := append([]need{{m.id, own}}, m.others...)
	return min(divide(float64(m.learner.Limit()), needs)[0], s.MaxLimit)
}

// known is the group's state, or where the store has none, the last that this member knew.
func (m *Member) known(s adaptive.Settings, v View) *adaptive.Learner {
	l := adaptive.NewLearner(min(max(s.InitialLimit, s.MinLimit), s.MaxLimit))
	if v.State != nil && l.UnmarshalBinary(v.State) == nil {
		return l
	}
	if m.learner != nil {
		return m.learner
	}
	return l
}

// learn takes the group's next step, if it is due; the others must see it before it is in force.
func (m *Member) learn(s adaptive.Settings, v View, own *record) (*adaptive.Learner, *Step) {
	known := m.known(s, v)
	if v.State != nil && v.Age >= 0 && float64(v.Age) < dueShare*float64(s.Window) {
		return known, nil
	}
	next := *known
	if v.State != nil {
		seen := []adaptive.Evidence{own.evidence}
		for _, o := range v.Others {
			if r, err := decode(o.Record); err == nil && (o.Age < v.Age || v.Age < 0) {
				seen = append(seen, r.evidence)
			}
		}
		next.Step(s, seen)
	}
	state, err := next.AppendBinary(nil)
	if err != nil {
		return known, nil
	}
	return &next, &Step{Version: v.Version, At: v.Now, Limit: next.Limit(), State: state, Window: s.Window}
}

// elsewhere is the lanes' work in the other members since the last time.
func (m *Member) elsewhere() []adaptive.LaneReport {
	var reports []adaptive.LaneReport
	works := make(map[string]map[adaptive.LaneKey]float64, len(m.others))
	for _, o := range m.others {
		before := m.works[o.id]
		now := make(map[adaptive.LaneKey]float64, len(o.lanes))
		for _, l := range o.lanes {
			now[l.Key] = l.Work
			last, known := before[l.Key]
			switch {
			case !known || l.Work == last: // it began a window ago at most, or was not among the lanes of the record
				continue
			case l.Work > last:
				l.Work -= last
			}
			reports = append(reports, l)
		}
		works[o.id] = now
	}
	m.works = works
	return reports
}

func (m *Member) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Failures++
	m.status.Error = fmt.Sprint(err)
}

func (m *Member) answered(v View, share int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.status
	s.Members, s.Limit, s.Share, s.Reason, s.Error = 1+len(v.Others), m.learner.Limit(), share, string(m.learner.Reason()), ""
	m.answerAt = time.Now()
	s.Parts = nil
	for _, o := range v.Others {
		s.Parts = append(s.Parts, Part{Member: o.Member, Share: o.Claim, AgeMS: o.Age.Milliseconds()})
	}
}

// Status is as of now.
func (m *Member) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	var age time.Duration
	if !m.answerAt.IsZero() {
		age = time.Since(m.answerAt)
	}
	s.AgeMS = age.Milliseconds()
	s.Stale = m.answerAt.IsZero() || age > validWindows*m.settings().Window
	return s
}
