package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/lease"
)

// jwtNamespace is where Envoy's JWT filter puts the claims: under the key that its payload_in_metadata names.
const jwtNamespace = "envoy.filters.http.jwt_authn"

// remark notes what is valid and surely not meant.
func (c *Config) remark(r *report) {
	c.remarkListen(r)
	c.remarkBytes(r)
	c.remarkLanes(r)
	c.remarkSharing(r)
	c.remarkSources(r)
	c.remarkPriority(r)
	c.remarkLeases(r)
	c.remarkPrincipals(r)
}

// remarkListen finds a listener where strangers can speak as Envoy.
func (c *Config) remarkListen(r *report) {
	network, address, err := ParseAddr(c.Listen.GRPC)
	if err == nil && !IsLocal(network, address) && !c.Listen.GRPCTLS.Enabled() {
		r.note("listen.grpc %s is not a loopback address: whoever reaches it speaks as Envoy; keep strangers away, or have listen.grpcTLS ask for certificates", c.Listen.GRPC)
	}
}

func (c *Config) remarkBytes(r *report) {
	b := c.Bytes
	if wait, most := b.Queue.MaxWait, c.Decision.MaxWait; wait > most {
		r.note("bytes.queue.maxWait %v is cut to decision.maxWait, %v, which bounds all waits together", wait, most)
	}
	if b.LargeBody > b.HardMaxBody {
		r.note("bytes.largeBody %v is above bytes.hardMaxBody, %v: no body is large, and none reserves bytes", b.LargeBody, b.HardMaxBody)
		return
	}
	if o := b.Budget.Override; o != nil && *o < float64(b.LargeBody) {
		r.note("bytes.budget.override %.0f is below bytes.largeBody, %v: every large body is refused with body_exceeds_budget", *o, b.LargeBody)
	}
	if b.Budget.Override == nil && b.Budget.Cap < b.LargeBody {
		r.note("bytes.budget.cap %v is below bytes.largeBody, %v: every large body is refused with body_exceeds_budget", b.Budget.Cap, b.LargeBody)
	}
	if b.Queue.MaxQueuedBytes < b.LargeBody {
		r.note("bytes.queue.maxQueuedBytes %v is below bytes.largeBody, %v: no large body ever waits", b.Queue.MaxQueuedBytes, b.LargeBody)
	}
}

// shortChat is the least that a chat request has.
func shortChat() int {
	return adaptive.Cost(adaptive.Features{Bytes: 200, Tokens: 50, Messages: 1})
}

// remarkLanes finds limits that no request fits under. What a cluster has from "*" is noted there only.
func (c *Config) remarkLanes(r *report) {
	all := c.Clusters[AnyCluster].Lanes
	for _, name := range c.clusterNames() {
		lanes := c.Clusters[name].Lanes
		if lanes.Mode != adaptive.Enforce || name != AnyCluster && lanes.MaxLimit == all.MaxLimit && all.Mode == adaptive.Enforce {
			continue
		}
		if cost := shortChat(); lanes.MaxLimit < cost {
			r.note("%s.maxLimit %v is below the cost of the shortest chat request, %d: each is refused with admission_oversized", join("clusters", name)+".lanes", lanes.MaxLimit, cost)
		}
	}
}

// remarkSharing finds limits that are shared with less than replicas could have in common.
func (c *Config) remarkSharing(r *report) {
	for _, name := range c.clusterNames() {
		lanes := c.Clusters[name].Lanes
		if lanes.Share != adaptive.ShareRedis || lanes.Mode == adaptive.Off {
			continue
		}
		path := join("clusters", name) + ".lanes"
		if lanes.Replicas == 1 {
			r.note("%s.share: redis without replicas: n, as many as there will be: a sidecar that has not reached the store yet takes the whole of initialLimit", path)
		}
		if c.Fanout.Secret == "" && c.Fanout.SecretFile == "" && len(c.Tenant.Sources) > 0 {
			r.note("%s.share: redis without fanout.secret or fanout.secretFile: lanes have another name on each replica, and a tenant gets a share on each", path)
		}
		return
	}
}

func (c *Config) remarkSources(r *report) {
	for path, sources := range c.sourceLists() {
		for i, s := range sources {
			if namespace, keys := s.MetadataPath(); namespace == jwtNamespace && len(keys) == 1 {
				r.note("%s[%d].metadata %s has one key: Envoy puts claims below the name that payload_in_metadata gives, as in %s/payload/%s", path, i, s.Metadata, jwtNamespace, keys[0])
			}
		}
	}
	if len(c.Tenant.Sources) == 0 && len(c.Tenant.Weights) > 0 {
		r.note("tenant.weights has no effect without tenant.sources: all requests are anonymous")
	}
}

// remarkLeases finds pools and connections that nothing leads to, and cuts that never come.
func (c *Config) remarkLeases(r *report) {
	if c.Leases.OnLost == "cut" && !c.Leases.RenewInFlight {
		r.note("leases.onLost: cut has no effect without leases.renewInFlight: what is not renewed is not found lost")
	}
	used := map[string]bool{}
	for _, name := range c.clusterNames() {
		if l := c.Clusters[name].Lease; l.Mode != lease.ModeOff && l.Mode != "" {
			used[l.Pool] = true
		}
	}
	allowed := map[string]bool{}
	for _, p := range c.Principals {
		for _, id := range p.Connections {
			allowed[id] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Leases.Pools)) {
		path := join("leases.pools", name)
		if !used[name] {
			r.note("%s: no cluster has lease.pool: %s, so that no request is checked against its leases", path, name)
		}
		for i, connection := range c.Leases.Pools[name].Connections {
			at := fmt.Sprintf("%s.connections[%d]", path, i)
			if connection.Cluster == "" {
				r.note("%s: %s has no cluster, so that nothing routes to it", at, connection.ID)
			}
			if !allowed[connection.ID] {
				r.note("%s: no principal may use %s", at, connection.ID)
			}
		}
	}
}

// remarkPrincipals finds principals that nobody can be.
func (c *Config) remarkPrincipals(r *report) {
	otherSource := slices.ContainsFunc(c.PrincipalSources, func(s Source) bool { return !s.APIKey })
	for i, p := range c.Principals {
		if p.KeySHA256 == "" && !otherSource {
			r.note("principals[%d]: %s has no keySHA256, and principalSources name nothing but API keys: nobody can be it", i, p.ID)
		}
	}
}
