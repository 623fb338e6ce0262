package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
)

// leastSecret is the least length of the fan-out secret in bytes: what an HMAC-SHA256 key should have, and long enough
// that the published hash of the configuration gives nothing to guess against.
const leastSecret = 32

// check reports every fault that concerns several values at once. Values that have a fault already are left out.
func (c *Config) check(r *report) {
	c.checkListen(r)
	c.checkSources(r)
	c.checkAttributes(r)
	c.checkWeights(r)
	c.checkPriority(r)
	c.checkTenantNames(r)
	r.addAll("bytes", c.Bytes.Budget.Validate())
	c.checkCount(r)
	r.addAll("pressure", c.Pressure.Validate())
	r.addAll("leases", c.Leases.Validate())
	c.checkClusters(r)
	c.checkPrincipals(r)
	c.checkFanout(r)
	if c.Shutdown.Drain > c.Shutdown.Grace {
		r.add("shutdown.drain", "%v is longer than shutdown.grace, %v, which includes it", c.Shutdown.Drain, c.Shutdown.Grace)
	}
	c.remark(r)
}

func (c *Config) checkListen(r *report) {
	listeners := []struct{ path, addr string }{
		{"listen.grpc", c.Listen.GRPC}, {"listen.admin", c.Listen.Admin}, {"listen.metrics", c.Listen.Metrics}, {"listen.api", c.Listen.API},
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
		if l.path == "listen.admin" && !c.Listen.AdminAllowRemote && !IsLocal(network, address) {
			r.add(l.path, "%s is not a loopback address; nothing there is authenticated, so this needs listen.adminAllowRemote: true", l.addr)
		}
		if other, ok := takenBy[address]; ok {
			r.add(l.path, "%s is already used by %s", l.addr, other)
		}
		if !strings.HasSuffix(address, ":0") {
			takenBy[address] = l.path
		}
	}
	c.Listen.GRPCTLS.check(r, "listen.grpcTLS")
	c.Listen.APITLS.check(r, "listen.apiTLS")
	if tls := c.Listen.GRPCTLS; tls.Enabled() && tls.ClientCAFile == "" {
		r.add("listen.grpcTLS.clientCAFile", "must not be empty: whoever reaches listen.grpc speaks as Envoy, so clients must show who they are")
	}
	if c.Listen.APITLS.Enabled() && c.Listen.API == "" {
		r.add("listen.apiTLS", "listen.api is empty: there is nothing to protect")
	}
}

// check finds settings that lack what they go with.
func (s ServerTLS) check(r *report, path string) {
	if (s.CertFile == "") != (s.KeyFile == "") {
		r.add(path, "certFile and keyFile go together")
	}
	if s.ClientCAFile != "" && s.CertFile == "" && s.KeyFile == "" {
		r.add(path+".clientCAFile", "needs certFile and keyFile: without them the listener speaks no TLS")
	}
	if len(s.ClientNames) > 0 && s.ClientCAFile == "" {
		r.add(path+".clientNames", "needs clientCAFile: a name in a certificate that nobody verified says nothing")
	}
	for i, name := range s.ClientNames {
		if name == "" || strings.ContainsAny(name, " \t\r\n*") {
			r.add(fmt.Sprintf("%s.clientNames[%d]", path, i), "%q is no DNS name or URI; there are no wildcards", clip(name))
		}
	}
}

// checkCount keeps a cap on messages away from bodies that are not read.
func (c *Config) checkCount(r *report) {
	if c.Bytes.Count == budget.CountFramed && c.Bytes.Structure.HardMaxMessages > 0 && !r.touched("bytes.count") {
		r.add("bytes.count", "framed does not read bodies whose length is declared, so that bytes.structure.hardMaxMessages, %d, cannot hold", c.Bytes.Structure.HardMaxMessages)
	}
}

func (c *Config) checkWeights(r *report) {
	if _, ok := c.Tenant.Weights[""]; ok {
		r.add(join("tenant.weights", ""), "tenants have names")
	}
	if _, ok := c.Tenant.MaxConcurrent[""]; ok {
		r.add(join("tenant.maxConcurrent", ""), "tenants have names")
	}
}

// checkTenantNames keeps names apart from those of other lanes, and whole in a line of a log.
func (c *Config) checkTenantNames(r *report) {
	const longest = 128
	for i, name := range c.Telemetry.TenantNames {
		at := fmt.Sprintf("telemetry.tenantNames[%d]", i)
		switch {
		case r.touched(at):
		case name == "" || len(name) > longest || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' }):
			r.add(at, "%q must have 1 to %d visible ASCII characters", clip(name), longest)
		case strings.HasPrefix(name, "lane_") || strings.HasPrefix(name, "_"):
			r.add(at, "%q begins like the names of other lanes", clip(name))
		}
	}
}

func (c *Config) checkAttributes(r *report) {
	for i, name := range c.RouteCluster.Attributes {
		at := fmt.Sprintf("routeCluster.attributes[%d]", i)
		if !r.touched(at) && (name == "" || strings.ContainsAny(name, " \t\n")) {
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
		own.addAll(join(path, "lanes"), cluster.Lanes.Validate())
		if cluster.Lanes.Share == adaptive.ShareRedis && len(c.Leases.Store.Redis.Addrs) == 0 {
			own.add(join(path, "lanes")+".share", "redis needs leases.store.redis.addrs: replicas meet there")
		}
		own.addAll(join(path, "lease"), cluster.Lease.Validate(join(path, "lease"), c.Leases.Pools))
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

// checkFanout validates what can be known of the secret without reading files.
func (c *Config) checkFanout(r *report) {
	switch f := c.Fanout; {
	case f.Secret != "" && f.SecretFile != "":
		r.add("fanout.secretFile", "fanout.secret is set too; only one of them can be")
	case f.Secret != "" && len(f.Secret) < leastSecret:
		r.add("fanout.secret", "must have at least %d bytes, has %d", leastSecret, len(f.Secret))
	}
}

// addAll reports the faults that another package found in the section at path. Each begins with the key it is about, from
// the section or from the root of the configuration on. Faults that name a value with a fault of its own are its
// consequences and left out.
func (r *report) addAll(path string, err error) {
	before := &report{faults: slices.Clone(r.faults)}
	for _, fault := range split(err) {
		at, message := path, fault.Error()
		if key, rest, ok := strings.Cut(message, ": "); ok && key == path || encloses(path, key) {
			at, message = key, rest
		} else if ok && plainKey(key) {
			at, message = join(path, key), rest
		}
		consequence := at != path && before.touched(at)
		for _, word := range strings.FieldsFunc(message, func(c rune) bool { return !plainKey(string(c)) && c != '.' }) {
			consequence = consequence || before.touched(path+"."+word) || (strings.Contains(word, ".") && before.touched(word))
		}
		if !consequence {
			r.add(at, "%s", message)
		}
	}
}

// split undoes errors.Join.
func split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // what is wrapped has words around it that belong to the fault
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}
