package extproc

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// policy is one immutable configuration in the form the exchange needs it. A stream keeps the one it began with.
type policy struct {
	config     *config.Config
	tenants    []source
	levels     []source
	principals []source
	parents    *adaptive.ParentTokens
	leases     *lease.Service  // knows the principals
	laneKey    []byte          // of the lane names
	lanes      *laneNames      // those made lately
	named      map[string]bool // tenants whose lanes have their names
	anonymous  *atomic.Int64   // requests in which no tenant source had a value
}

// source is a compiled config.Source.
type source struct {
	config.Source
	path []string // of Metadata
}

// tenant is who a request is counted for. The raw identity stays inside; lanes and queues know the opaque name only.
type tenant struct {
	name   string // opaque, empty for anonymous
	weight float64
	most   int // requests that may run at once; 0 leaves it to the cluster
}

func newPolicy(c *config.Config, s *Server) *policy {
	named := make(map[string]bool, len(c.Telemetry.TenantNames))
	for _, name := range c.Telemetry.TenantNames {
		named[name] = true
	}
	return &policy{
		named:  named,
		config: c, tenants: compile(c.Tenant.Sources), levels: compile(c.Priority.Sources), principals: compile(c.PrincipalSources),
		parents: s.parents, leases: s.leases, laneKey: s.laneKey, lanes: &laneNames{made: map[string]string{}}, anonymous: &s.anonymous,
	}
}

func compile(sources []config.Source) []source {
	out := make([]source, len(sources))
	for i, s := range sources {
		out[i] = source{Source: s}
		out[i].Header = strings.ToLower(s.Header)
		if s.Metadata != "" {
			namespace, keys := s.MetadataPath()
			out[i].path = append([]string{namespace}, keys...)
		}
	}
	return out
}

// clusterOf names the route cluster by the first attribute that Envoy sent.
func (p *policy) clusterOf(m *wire.Message) string {
	for _, attribute := range p.config.RouteCluster.Attributes {
		if name := m.Attribute(attribute); name != "" {
			return name
		}
	}
	return clusterUnnamed
}

// tenantOf finds the tenant in the first source that has one.
func (p *policy) tenantOf(m *wire.Message) tenant {
	id, _ := p.identify(m, p.tenants)
	raw := id.Principal
	if raw == "" {
		if len(p.tenants) > 0 {
			p.anonymous.Add(1)
		}
		return tenant{}
	}
	return tenant{name: p.laneName(raw), weight: cmp.Or(p.config.Tenant.Weights[raw], 1), most: p.config.Tenant.MaxConcurrent[raw]}
}

// levelOf finds the priority level in the first source that names one.
func (p *policy) levelOf(m *wire.Message) string {
	for i := range p.levels {
		if id, _ := p.identify(m, p.levels[i:i+1]); p.config.Priority.Has(id.Principal) {
			return id.Principal
		}
	}
	return p.config.Priority.Unnamed()
}

// principalOf finds who calls, for the lease. An API key that nobody has is refused: taken for no key, one that was revoked
// would get what a valid one does not.
func (p *policy) principalOf(m *wire.Message) (lease.Identity, *lease.Refusal) {
	id, keyUnknown := p.identify(m, p.principals)
	switch {
	case keyUnknown:
		return lease.Identity{}, &lease.Refusal{Reason: lease.APIKeyInvalid}
	case id.Principal == "" || id.Managed:
		return id, nil
	}
	return p.leases.Identify(id.Principal), nil
}

// identify returns the identity from the first source that has one. A repeated header counts with its first value, and
// blank is none. An API key that nobody has ends the search.
func (p *policy) identify(m *wire.Message, sources []source) (_ lease.Identity, keyUnknown bool) {
	for _, s := range sources {
		var name string
		switch {
		case s.path != nil:
			name = m.Metadata(s.path)
		case s.Header != "":
			value, _ := m.Header(s.Header)
			name = string(value)
		case s.Attribute != "":
			name = m.Attribute(s.Attribute)
		case s.APIKey:
			authorization, _ := m.Header("authorization")
			apiKey, _ := m.Header("x-api-key")
			if key := lease.APIKey(string(authorization), string(apiKey)); key != "" {
				id, known := p.leases.IdentifyKey(key)
				return id, !known
			}
		}
		if name = strings.TrimSpace(name); name != "" {
			return lease.Identity{Principal: name}, false
		}
	}
	return lease.Identity{}, false
}

// laneName is the only form of a tenant that leaves the process: it cannot be turned back and means nothing after a
// restart, but for the tenants that the configuration lets be named.
func (p *policy) laneName(raw string) string {
	if p.named[raw] {
		return raw
	}
	if name, ok := p.lanes.find(raw); ok {
		return name
	}
	mac := hmac.New(sha256.New, p.laneKey)
	mac.Write([]byte(raw))
	name := "lane_" + hex.EncodeToString(mac.Sum(nil)[:8])
	p.lanes.add(raw, name)
	return name
}

// laneNames are the names of tenants seen lately: making one takes longer than all else that is done with it.
type laneNames struct {
	mu   sync.RWMutex
	made map[string]string
}

// What bounds the names: clients may be able to choose them.
const (
	maxLaneNames    = 4096
	maxTenantLength = 256
)

func (l *laneNames) find(raw string) (name string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok = l.made[raw]
	return name, ok
}

// add adds a name. When there are too many, all are dropped: those that are in use come back at once.
func (l *laneNames) add(raw, name string) {
	if len(raw) > maxTenantLength {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.made) >= maxLaneNames {
		clear(l.made)
	}
	l.made[strings.Clone(raw)] = name
}

func (p *policy) verifyParent(token string) (adaptive.Parent, bool) {
	if token == "" {
		return adaptive.Parent{}, false
	}
	parent, err := p.parents.Verify(token)
	return parent, err == nil
}
