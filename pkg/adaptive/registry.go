package adaptive

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
)

// Registry has one controller per route cluster, made when the cluster is first asked for.
type Registry struct {
	byCluster atomic.Pointer[map[string]*Controller] // never changed in place

	mu       sync.Mutex // writers
	settings func(cluster string) Settings
	maxLanes int
	onNew    func(cluster string, c *Controller)
	severity Severity
	shutdown bool
}

// NewRegistry makes a registry. settings must answer for every cluster; maxLanes bounds the tenants that one controller
// tells apart, 0 means defaultMaxLanes.
func NewRegistry(settings func(cluster string) Settings, maxLanes int) *Registry {
	if maxLanes <= 0 {
		maxLanes = defaultMaxLanes
	}
	r := &Registry{settings: settings, maxLanes: maxLanes}
	r.byCluster.Store(&map[string]*Controller{})
	return r
}

// OnNew reports every controller that is made from now on. f must not block.
func (r *Registry) OnNew(f func(cluster string, c *Controller)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onNew = f
}

// Controllers are those made so far, by cluster; the map must not be changed.
func (r *Registry) Controllers() map[string]*Controller { return *r.byCluster.Load() }

// Controller is the cluster's controller. Settings that are not valid, which configuration has refused long before, make
// one that is off.
func (r *Registry) Controller(cluster string) *Controller {
	if c, ok := (*r.byCluster.Load())[cluster]; ok {
		return c
	}
	c, report := r.make(cluster)
	if report != nil {
		report(cluster, c)
	}
	return c
}

// make a cluster's controller, unless somebody else just has.
func (r *Registry) make(cluster string) (_ *Controller, onNew func(string, *Controller)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.byCluster.Load()
	if c, ok := known[cluster]; ok {
		return c, nil
	}
	s := r.settings(cluster)
	if s.Validate() != nil {
		s = DefaultSettings()
		s.Mode = Off
	}
	c := newController(s, r.maxLanes)
	c.Observe(r.severity)
	if r.shutdown {
		c.Shutdown()
	}
	grown := maps.Clone(known)
	grown[cluster] = c
	r.byCluster.Store(&grown)
	return c, r.onNew
}

// Configure puts new settings into force for all clusters, or, if those of any cluster known so far are not valid, for
// none.
func (r *Registry) Configure(settings func(cluster string) Settings) error {
	commit, err := r.Prepare(settings)
	if err == nil {
		commit()
	}
	return err
}

// Prepare does what can fail of Configure. Until commit is called nothing changes.
func (r *Registry) Prepare(settings func(cluster string) Settings) (commit func(), err error) {
	var faults []error
	for cluster := range *r.byCluster.Load() {
		if err := settings(cluster).Validate(); err != nil {
			faults = append(faults, fmt.Errorf("cluster %q: %w", cluster, err))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for cluster, c := range *r.byCluster.Load() {
			if s := settings(cluster); s.Validate() == nil { // that of one that came meanwhile may be at fault: see Controller
				c.configure(s)
			}
		}
		r.settings = settings
	}, nil
}

// Observe tells every controller the severity of resource pressure.
func (r *Registry) Observe(s Severity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.severity = s
	for _, c := range *r.byCluster.Load() {
		c.Observe(s)
	}
}

// Shutdown shuts every controller down, those made later too.
func (r *Registry) Shutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutdown = true
	for _, c := range *r.byCluster.Load() {
		c.Shutdown()
	}
}

// Snapshot reports every controller by cluster.
func (r *Registry) Snapshot() map[string]Snapshot { return r.report((*Controller).Snapshot) }

// Totals is Snapshot without the lanes' own figures, for who asks often.
func (r *Registry) Totals() map[string]Snapshot { return r.report((*Controller).Totals) }

func (r *Registry) report(what func(*Controller) Snapshot) map[string]Snapshot {
	known := *r.byCluster.Load()
	all := make(map[string]Snapshot, len(known))
	for cluster, c := range known {
		all[cluster] = what(c)
	}
	return all
}
