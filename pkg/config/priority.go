package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/pkg/adaptive"
)

const (
	mostLevels       = 8
	longestLevelName = 32
)

// Has reports whether there is a level of a name.
func (p Priority) Has(name string) bool {
	return slices.ContainsFunc(p.Levels, func(l adaptive.Level) bool { return l.Name == name })
}

// Unnamed returns the level of requests of which no source names one; empty where there are no levels.
func (p Priority) Unnamed() string {
	if p.Default != "" || len(p.Levels) == 0 {
		return p.Default
	}
	return p.Levels[len(p.Levels)-1].Name
}

func (c *Config) checkPriority(r *report) {
	p := c.Priority
	seen := map[string]bool{}
	for i, l := range p.Levels {
		at := fmt.Sprintf("priority.levels[%d]", i)
		if r.touched(at) {
			continue
		}
		switch {
		case !levelName(l.Name):
			r.add(join(at, "name"), "%q must have 1 to %d lower-case letters, digits, - and _", clip(l.Name), longestLevelName)
		case seen[l.Name]:
			r.add(join(at, "name"), "%q stands twice", l.Name)
		case l.Share == 0:
			r.add(join(at, "share"), "must be given, in 1..1000")
		}
		seen[l.Name] = true
	}
	if len(p.Levels) > mostLevels {
		r.add("priority.levels", "must have at most %d levels, has %d", mostLevels, len(p.Levels))
	}
	if r.touched("priority.levels") {
		return
	}
	if p.Default != "" && !p.Has(p.Default) {
		r.add("priority.default", "%q is none of the levels in priority.levels", clip(p.Default))
	}
	if len(p.Sources) > 0 && len(p.Levels) == 0 {
		r.add("priority.sources", "has no effect without priority.levels")
	}
	for i, s := range p.Sources {
		if s.APIKey {
			r.add(fmt.Sprintf("priority.sources[%d].apiKey", i), "names a principal, not a level")
		}
	}
}

func levelName(name string) bool {
	return name != "" && len(name) <= longestLevelName &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// remarkPriority finds levels and bounds that change nothing.
func (c *Config) remarkPriority(r *report) {
	enforced := false
	for _, name := range c.clusterNames() {
		lanes := c.Clusters[name].Lanes
		enforced = enforced || lanes.Mode == adaptive.Enforce
		if own := lanes.MaxConcurrent > 0 || lanes.TenantMaxConcurrent > 0; own && lanes.Mode != adaptive.Enforce && !c.inheritsConcurrency(name) {
			r.note("%s: maxConcurrent and tenantMaxConcurrent hold nobody back in mode %s", join("clusters", name)+".lanes", lanes.Mode)
		}
	}
	if len(c.Tenant.Sources) == 0 && len(c.Tenant.MaxConcurrent) > 0 {
		r.note("tenant.maxConcurrent has no effect without tenant.sources: all requests are anonymous")
	}
	switch {
	case len(c.Priority.Levels) == 0:
	case len(c.Priority.Sources) == 0:
		r.note("priority.levels without priority.sources: all requests are at level %s", c.Priority.Unnamed())
	case !enforced:
		r.note("priority.levels have no effect: no cluster has lanes.mode enforce")
	}
}

// inheritsConcurrency reports whether what a cluster says is what "*" says, which is noted there.
func (c *Config) inheritsConcurrency(name string) bool {
	own, all := c.Clusters[name].Lanes, c.Clusters[AnyCluster].Lanes
	return name != AnyCluster && own.Mode == all.Mode && own.MaxConcurrent == all.MaxConcurrent && own.TenantMaxConcurrent == all.TenantMaxConcurrent
}
