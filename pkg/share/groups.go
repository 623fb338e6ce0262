package share

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Groups runs the members of a process: one for every controller whose cluster shares its limit.
type Groups struct {
	mu      sync.Mutex
	store   Store // nil: nothing is shared
	group   func(cluster string) string
	setting func(cluster string) adaptive.Settings
	members map[string]*running
	closed  bool
}

// running is a member that exchanges.
type running struct {
	*Member
	store Store
	stop  context.CancelFunc
	ended chan struct{}
}

// NewGroups runs nothing until Configure and Join are called.
func NewGroups() *Groups { return &Groups{members: make(map[string]*running)} }

// Configure puts into force where members meet, and which group a cluster belongs to; "" is none. Controllers are those known so
// far. A member whose store or group is another leaves and joins anew.
func (g *Groups) Configure(s Store, group func(string) string, settings func(string) adaptive.Settings, controllers map[string]*adaptive.Controller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.store, g.group, g.setting = s, group, settings
	for cluster, m := range g.members {
		if s == nil || m.store != s || m.group != group(cluster) {
			m.end()
			delete(g.members, cluster)
		}
	}
	for cluster, c := range controllers {
		g.joinLocked(cluster, c)
	}
}

// Join has the controller of a cluster share its limit, if it is to.
func (g *Groups) Join(cluster string, c *adaptive.Controller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.joinLocked(cluster, c)
}

func (g *Groups) joinLocked(cluster string, c *adaptive.Controller) {
	if g.closed || g.store == nil || g.members[cluster] != nil {
		return
	}
	group := g.group(cluster)
	if group == "" {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &running{
		Member: NewMember(group, c, g.store, func() adaptive.Settings { return g.settings(cluster) }),
		store:  g.store, stop: stop, ended: make(chan struct{}),
	}
	g.members[cluster] = m
	go func() {
		defer close(m.ended)
		m.Run(ctx)
	}()
}

func (g *Groups) settings(cluster string) adaptive.Settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setting(cluster)
}

// end has a member leave, without waiting for that.
func (m *running) end() { m.stop() }

// Status of every member, by cluster.
func (g *Groups) Status() map[string]Status {
	g.mu.Lock()
	members := maps.Clone(g.members)
	g.mu.Unlock()
	status := make(map[string]Status, len(members))
	for cluster, m := range members {
		status[cluster] = m.Status()
	}
	return status
}

// Close has every member leave its group, and waits until they have.
func (g *Groups) Close() {
	g.mu.Lock()
	g.closed = true
	members := slices.Collect(maps.Values(g.members))
	clear(g.members)
	g.mu.Unlock()
	for _, m := range members {
		m.end()
	}
	for _, m := range members {
		<-m.ended
	}
}
