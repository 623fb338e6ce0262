package share

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// crowd is some members of one group with traffic of their own.
type crowd struct {
	t        *testing.T
	settings adaptive.Settings
	memory   *Memory
	members  []*tester
	running  sync.WaitGroup
	rng      *rand.Rand
}

// tester is a member whose store can go away, and that can be frozen: then it does nothing at all.
type tester struct {
	*Member
	Store
	mu     sync.Mutex
	away   bool
	frozen bool
	stop   context.CancelFunc
}

var errAway = errors.New("away")

func (m *tester) err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away || m.frozen {
		return errAway
	}
	return nil
}

func (m *tester) set(away, frozen bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away, m.frozen = away, frozen
}

func (m *tester) Exchange(ctx context.Context, group string, c Claim) (View, error) {
	if err := m.err(); err != nil {
		return View{}, err
	}
	return m.Store.Exchange(ctx, group, c)
}

func (m *tester) Commit(ctx context.Context, group string, s Step) (bool, error) {
	if err := m.err(); err != nil {
		return false, err
	}
	return m.Store.Commit(ctx, group, s)
}

func newCrowd(t *testing.T, n int, edit func(*adaptive.Settings)) *crowd {
	s := adaptive.DefaultSettings()
	s.Mode, s.VirtualLanes, s.Replicas = adaptive.Enforce, true, n
	if edit != nil {
		edit(&s)
	}
	c := &crowd{t: t, settings: s, memory: NewMemory(), rng: rand.New(rand.NewPCG(1, uint64(n)))}
	for range n {
		c.join()
	}
	t.Cleanup(c.end)
	return c
}

func (c *crowd) join() *tester {
	controller, err := adaptive.New(c.settings)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &tester{Store: c.memory}
	m.Member = NewMember("g", controller, m, func() adaptive.Settings { return c.settings })
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	c.members = append(c.members, m)
	offset := time.Duration(c.rng.Float64() * float64(c.settings.Window))
	c.running.Go(func() {
		time.Sleep(offset)
		m.Run(ctx)
	})
	return m
}

func (c *crowd) end() {
	for _, m := range c.members {
		m.stop()
	}
	c.running.Wait()
}

func (m *tester) limit() int { return m.controller.Totals().CurrentLimit }

// sum of the limits in force in members that do anything.
func (c *crowd) sum() (sum int) {
	for _, m := range c.members {
		m.mu.Lock()
		frozen := m.frozen
		m.mu.Unlock()
		if !frozen {
			sum += m.limit()
		}
	}
	return sum
}

// backlog keeps requests of a tenant waiting at a member, until the crowd ends.
func (c *crowd) backlog(m *tester, tenant string, cost, waiters int) {
	ctx, stop := context.WithCancel(context.Background())
	before := m.stop
	m.stop = func() { stop(); before() }
	for range waiters {
		c.running.Go(func() {
			for ctx.Err() == nil {
				p := new(adaptive.Permit)
				switch m.controller.Acquire(p, adaptive.Request{Lane: tenant, Cost: cost, Forward: true}) {
				case adaptive.Waiting:
					select {
					case <-p.Ready():
					case <-ctx.Done():
						p.Cancel()
						return
					}
				case adaptive.Refused:
					time.Sleep(100 * time.Millisecond)
					continue
				case adaptive.Admitted:
				}
				if p.Reason() != "" {
					continue
				}
				time.Sleep(200 * time.Millisecond)
				p.Done(adaptive.OK)
			}
		})
	}
}

// fixedAt keeps the group's limit where it is, to see how it is divided.
func fixedAt(limit int) func(*adaptive.Settings) {
	return func(s *adaptive.Settings) {
		s.MinLimit, s.InitialLimit, s.MaxLimit, s.MaxShare = limit, limit, limit, 1
	}
}

func (c *crowd) limits() (all []int) {
	for _, m := range c.members {
		all = append(all, m.limit())
	}
	return all
}

// Members find each other within three windows; a burst moves the limit to where it is wanted, and back.
func TestPartsFollowDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 4, fixedAt(80))
		time.Sleep(4 * time.Second)
		for i, l := range c.limits() {
			if l < 18 || l > 22 {
				t.Errorf("without traffic member %d has %d of 80 (%v), want an equal part", i, l, c.limits())
			}
		}
		c.backlog(c.members[0], "a", 1, 200)
		time.Sleep(4 * time.Second)
		if got := c.limits(); got[0] < 70 || got[1] < 1 {
			t.Errorf("with traffic in the first member alone: %v, want nearly all of 80 there and a floor elsewhere", got)
		}
		c.backlog(c.members[3], "b", 1, 200)
		time.Sleep(5 * time.Second)
		if got := c.limits(); got[0] < 33 || got[0] > 43 || got[3] < 33 || got[3] > 43 {
			t.Errorf("with another tenant in the last member: %v, want half in each", got)
		}
	})
}

// A member that dies, or is frozen, leaves its part to the others within five windows; one that comes back does not jump.
func TestMemberGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 4, nil) // the limit grows: latency is the same at any
		for _, m := range c.members {
			c.backlog(m, "a", 1, 100)
		}
		time.Sleep(10 * time.Second)
		whole := func() int { return max(c.members[0].Status().Limit, c.members[1].Status().Limit) }
		for gone := range 4 { // whoever takes the steps
			m := c.members[gone]
			m.set(false, true)
			time.Sleep(5 * c.settings.Window)
			if sum := c.sum(); float64(sum) < 0.85*float64(whole()) || sum > whole()+4 {
				t.Errorf("five windows after member %d froze the others have %d of %d (%v)", gone, sum, whole(), c.limits())
			}
			m.set(false, false)
			for range 50 {
				time.Sleep(100 * time.Millisecond)
				if sum := c.sum(); sum > whole()+whole()/4+4 {
					t.Errorf("after the return of member %d the sum is %d (%v), want at most %d, its last part and floors", gone, sum, c.limits(), whole())
				}
			}
			time.Sleep(3 * time.Second)
			if l := m.limit(); float64(l) < 0.8*float64(whole())/4 || float64(l) > 1.2*float64(whole())/4 {
				t.Errorf("member %d has %d of %d again (%v), want an equal part", gone, l, whole(), c.limits())
			}
		}
	})
}

// Without the store members keep to what they had, and their sum to the limit, however uneven their parts were; when it is back they
// go on from there, also when it has forgotten everything.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 4, fixedAt(80))
		c.backlog(c.members[0], "a", 1, 200)
		c.backlog(c.members[1], "b", 1, 5)
		time.Sleep(10 * time.Second)
		before := c.limits()
		for _, m := range c.members {
			m.set(true, false)
		}
		for second := range 120 {
			time.Sleep(time.Second)
			if sum := c.sum(); sum > 84 || sum < 60 {
				t.Fatalf("%d s without the store: %v after %v, want a sum of about 80", second, c.limits(), before)
			}
		}
		for i, l := range c.limits() {
			if l < 18 || l > 22 {
				t.Errorf("after two minutes member %d has %d (%v), want an equal part of 80", i, l, c.limits())
			}
		}
		for _, m := range c.members {
			m.set(false, false)
		}
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if sum := c.sum(); sum > 90 {
				t.Fatalf("after its return: %v, want a sum of about 80", c.limits())
			}
		}
		if got := c.limits(); got[0] < 60 {
			t.Errorf("ten seconds after its return: %v, want most in the first", got)
		}
	})
}

// Whatever happens to members and store, the sum of the limits in force is at no moment above maxLimit and the floors.
func TestSumIsBounded(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				n := 2 + rng.IntN(6)
				const most = 60
				c := newCrowd(t, n, func(s *adaptive.Settings) { s.MinLimit, s.InitialLimit, s.MaxLimit = 8, 60, most })
				for i, m := range c.members {
					if rng.IntN(2) == 0 {
						c.backlog(m, fmt.Sprint("tenant", i%3), 1, 1+rng.IntN(100))
					}
				}
				for range 600 {
					time.Sleep(250 * time.Millisecond)
					if rng.IntN(8) == 0 {
						m := c.members[rng.IntN(n)]
						m.set(rng.IntN(3) == 0, false)
					}
					if sum, bound := c.sum(), most+2*n; sum > bound {
						t.Fatalf("the limits %v sum to %d, want at most maxLimit %d and %d floors", c.limits(), sum, most, n)
					}
				}
			})
		})
	}
}

// Members that leave give their part back at once.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, func(s *adaptive.Settings) { fixedAt(80)(s); s.Replicas = 1 })
		c.backlog(c.members[0], "a", 1, 200)
		time.Sleep(5 * time.Second)
		c.members[1].stop()
		time.Sleep(2500 * time.Millisecond)
		if got := c.members[0].limit(); got != 80 {
			t.Errorf("two windows after the other left: %d, want all of 80", got)
		}
	})
}
