package extproc

import "sync"

// What bounds the route clusters told apart. A route with cluster_header lets a client choose the name.
const (
	maxClusters  = 1000
	clusterOther = "_other"
)

// clusters bounds the names that become controllers and metric labels.
type clusters struct {
	mu    sync.RWMutex
	known map[string]struct{}
}

// name returns a name that is known, or becomes known while there is room, and _other after that.
func (c *clusters) name(name string) string {
	c.mu.RLock()
	_, ok := c.known[name]
	c.mu.RUnlock()
	if ok {
		return name
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[name]; !ok {
		if len(c.known) >= maxClusters {
			return clusterOther
		}
		c.known[name] = struct{}{}
	}
	return name
}
