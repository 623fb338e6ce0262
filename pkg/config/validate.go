package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
)

// leastSecret is the least length of the fan-out secret in bytes: what an HMAC-SHA256 key should have, and long enough
// that the published hash of the configuration gives nothing to guess against.
const leastSecret = 32

// check reports every fault that concerns several values at once. Values that have a fault already are left out.
func (c *Config) check(r *report) {
	c.checkListen(r)
	c.checkSources(r)
	c.checkWeights(r)
	validated(r, "bytes", c.Bytes)
	validated(r, "pressure", c.Pressure)
	validated(r, "leases", c.Leases)
	c.checkClusters(r)
	c.checkPools(r)
	c.checkPrincipals(r)
	c.checkFanout(r)
	if c.Shutdown.Drain > c.Shutdown.Grace {
		r.add("shutdown.drain", "%v is longer than shutdown.grace, %v, which includes it", c.Shutdown.Drain, c.Shutdown.Grace)
	}
	if wait, most := c.Bytes.Queue.MaxWait, c.Decision.MaxWait; wait > most {
		r.note("bytes.queue.maxWait %v is cut to decision.maxWait, %v, which bounds all waits together", wait, most)
	}
}

func (c *Config) checkListen(r *report) {
	listeners := []struct{ path, addr string }{
		{"listen.grpc", c.Listen.GRPC}, {"listen.admin", c.Listen.Admin}, {"listen.api", c.Listen.API},
	}
	takenBy := map[string]string{}
	for _, l := range listeners {
		if l.addr == "" {
			if l.path == "listen.grpc" {
				r.add(l.path, "must not be empty")
			}
			continue
		}
		network, address, err := ParseAddr(l.addr)
		if err != nil {
			r.add(l.path, "%v", err)
			continue
		}
		if l.path == "listen.admin" && !c.Listen.AdminAllowRemote && !isLocal(network, address) {
			r.add(l.path, "%s is not a loopback address; nothing there is authenticated, so this needs listen.adminAllowRemote: true", l.addr)
		}
		if other, ok := takenBy[address]; ok {
			r.add(l.path, "%s is already used by %s", l.addr, other)
		}
		if !strings.HasSuffix(address, ":0") {
			takenBy[address] = l.path
		}
	}
}

func (c *Config) checkWeights(r *report) {
	for _, tenant := range slices.Sorted(maps.Keys(c.Tenant.Weights)) {
		if tenant == "" {
			r.add(join("tenant.weights", tenant), "tenants have names")
		}
	}
	for i, name := range c.RouteCluster.Attributes {
		at := fmt.Sprintf("routeCluster.attributes[%d]", i)
		if !r.has(at) && (name == "" || strings.ContainsAny(name, " \t\n")) {
			r.add(at, "%q is no attribute name", clip(name))
		}
	}
}

// checkClusters validates every entry. What an entry has from "*" is reported there only.
func (c *Config) checkClusters(r *report) {
	inherited := map[string]bool{}
	for _, name := range c.clusterNames() {
		cluster, path := c.Clusters[name], join("clusters", name)
		if name == "" {
			r.add(path, "clusters have names; \"*\" stands for all others")
		}
		own := newReport()
		own.faults, own.origins = slices.Clone(r.faults), r.origins
		known := len(own.faults)
		validated(own, join(path, "lanes"), cluster.Lanes)
		if cluster.Lease.Mode != lease.ModeOff {
			c.checkLeasePool(own, join(path, "lease"), cluster.Lease)
		}
		for _, f := range own.faults[known:] {
			text := strings.TrimPrefix(f.Path, path) + f.Message
			if !inherited[text] {
				r.faults = append(r.faults, f)
			}
			if name == AnyCluster {
				inherited[text] = true
			}
		}
	}
}

// clusterNames are sorted, with "*" first.
func (c *Config) clusterNames() []string {
	names := slices.Sorted(maps.Keys(c.Clusters))
	slices.SortStableFunc(names, func(a, b string) int { return boolRank(b == AnyCluster) - boolRank(a == AnyCluster) })
	return names
}

func (c *Config) checkLeasePool(r *report, path string, s lease.ClusterSettings) {
	if s.Pool == "" {
		r.add(join(path, "pool"), "lease mode %s needs a pool of leases.pools", s.Mode)
		return
	}
	if _, ok := c.Leases.Pools[s.Pool]; !ok && !r.has("leases.pools") {
		r.add(join(path, "pool"), "there is no pool %q in leases.pools%s", s.Pool, suggest(s.Pool, slices.Sorted(maps.Keys(c.Leases.Pools))))
	}
}

// checkFanout validates what can be known of the secret without reading files.
func (c *Config) checkFanout(r *report) {
	switch f := c.Fanout; {
	case f.Secret != "" && f.SecretFile != "":
		r.add("fanout.secretFile", "fanout.secret is set too; only one of them can be")
	case f.Secret != "" && len(f.Secret) < leastSecret:
		r.add("fanout.secret", "must have at least %d bytes, has %d", leastSecret, len(f.Secret))
	}
}

// validated asks the settings of another package to validate themselves, and finds the path of each fault from the
// field it names. Faults that concern a value with a fault of its own are consequences and left out.
func validated(r *report, path string, settings any) {
	v, ok := settings.(interface{ Validate() error })
	if !ok {
		return
	}
	known := map[string]string{}
	for _, l := range leavesOf(reflect.TypeOf(settings), "") {
		known[l.path] = join(path, l.path)
		known[join(path, l.path)] = join(path, l.path)
	}
	for _, err := range split(v.Validate()) {
		at, consequence := path, false
		for _, word := range strings.FieldsFunc(err.Error(), func(c rune) bool { return !plainKey(string(c)) && c != '.' }) {
			named, ok := known[strings.TrimSuffix(word, ".")]
			if !ok {
				continue
			}
			if at == path {
				at = named
			}
			consequence = consequence || r.has(named)
		}
		if !consequence {
			r.add(at, "%s", strings.TrimPrefix(err.Error(), at+": "))
		}
	}
}

// split undoes errors.Join.
func split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}
