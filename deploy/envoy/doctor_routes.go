package envoyconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// routes examines where governed routes lead and how long they let responses last.
func (e *examination) routes(m connectionManager, filterName string) {
	if e.routed == nil {
		e.routed = map[string]bool{}
	}
	where := "listener " + m.listener.text("name", "?")
	for _, r := range m.routes {
		name := "route " + r.text("name", fmt.Sprint(r["match"]))
		action := r.get("route")
		if r.get("typed_per_filter_config", filterName).bool("disabled") {
			if to := action.text("cluster", ""); to != "headgate-api" {
				e.note(where+", "+name, "the processor is disabled: what goes to %s is not governed", to)
			}
			continue
		}
		if action == nil {
			continue
		}
		if limit := action.duration("timeout", 15*time.Second); limit > 0 && limit < time.Minute {
			e.note(where+", "+name, "its timeout is %v: longer responses are cut; 0s", limit)
		}
		for _, to := range clustersOfAction(action) {
			e.routed[to] = true
		}
	}
}

// clustersOfAction are the clusters a route leads to.
func clustersOfAction(action object) []string {
	var all []string
	if to := action.text("cluster", ""); to != "" {
		all = append(all, to)
	}
	for _, w := range action.get("weighted_clusters").list("clusters") {
		all = append(all, w.text("name", ""))
	}
	return all
}

// clusterNames compares the names under clusters with those that Envoy routes to.
func (e *examination) clusterNames() {
	for _, name := range slices.Sorted(maps.Keys(e.config.Clusters)) {
		if name == config.AnyCluster || e.routed[name] || strings.HasSuffix(name, "*") {
			continue
		}
		e.fault("clusters", "the sidecar has settings for %q, but no governed route leads to a cluster of that name (they lead to %q)", name, slices.Sorted(maps.Keys(e.routed)))
	}
	for _, name := range slices.Sorted(maps.Keys(e.routed)) {
		if _, own := e.config.Clusters[name]; !own && e.dump.cluster(name) == nil {
			e.fault("cluster "+name, "a route leads to it, but it does not exist")
		} else if !own && !e.isConnection(name) {
			e.note("cluster "+name, `the sidecar has no settings of its own for it: those of "*" count (lanes %s)`, e.config.Cluster(name).Lanes.Mode)
		}
	}
}

// isConnection reports whether a cluster is a connection of some lease pool.
func (e *examination) isConnection(name string) bool {
	for _, p := range e.config.Leases.Pools {
		for _, c := range p.Connections {
			if c.Cluster == name {
				return true
			}
		}
	}
	return false
}
