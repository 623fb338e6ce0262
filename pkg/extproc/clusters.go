package extproc

import (
	"sync"
	"unicode/utf8"
)

// What bounds the route clusters told apart. A route with cluster_header lets a client choose the name.
const (
	maxClusters    = 1000
	maxClusterName = 255
	clusterOther   = "_other"
)

// clusters bounds the names that become controllers and metric labels.
type clusters struct {
	mu    sync.RWMutex
	known map[string]struct{}
}

// clusterName is how a route cluster is known inside. Configured names are always known; others become known while
// there is room, and are _other after that. Their settings are looked up under the name Envoy gave.
func (s *Server) clusterName(p *policy, name string) string {
	if _, configured := p.config.Clusters[name]; configured {
		return name
	}
	if len(name) > maxClusterName || !utf8.ValidString(name) {
		return clusterOther
	}
	return s.clusters.learn(name)
}

func (c *clusters) learn(name string) string {
	if c.knows(name) {
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

func (c *clusters) knows(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, ok := c.known[name]
	return ok
}
