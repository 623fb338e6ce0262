package extproc

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// policy is one immutable configuration in the form the exchange needs it. A stream keeps the one it began with.
type policy struct {
	config     *config.Config
	sources    []source // of the tenant
	principals []source
	keys       map[[sha256.Size]byte]lease.Principal // by the hash of their API key
	parents    *adaptive.ParentTokens
	laneKey    []byte // of the lane names
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
}

func newPolicy(c *config.Config, parents *adaptive.ParentTokens, laneKey []byte) *policy {
	p := &policy{
		config:     c,
		sources:    compile(c.Tenant.Sources),
		principals: compile(c.PrincipalSources),
		keys:       make(map[[sha256.Size]byte]lease.Principal, len(c.Principals)),
		parents:    parents,
		laneKey:    laneKey,
	}
	for _, principal := range c.Principals {
		var hash [sha256.Size]byte
		if n, err := hex.Decode(hash[:], []byte(principal.KeySHA256)); err == nil && n == len(hash) {
			p.keys[hash] = principal
		}
	}
	return p
}

func compile(sources []config.Source) []source {
	out := make([]source, len(sources))
	for i, s := range sources {
		out[i] = source{Source: s}
		if s.Metadata != "" {
			out[i].path = strings.Split(s.Metadata, "/")
		}
	}
	return out
}

// clusterOf names the route cluster: the policy named by the route, else the first attribute that Envoy sent.
func (p *policy) clusterOf(m *wire.Message) string {
	for _, attribute := range p.config.RouteCluster.Attributes {
		if name := m.Attribute(attribute); name != "" {
			return name
		}
	}
	return clusterUnnamed
}

// tenantOf finds the tenant in the first source that has one. Repeated headers count with their first value.
func (p *policy) tenantOf(m *wire.Message) tenant {
	raw := p.identity(m, p.sources)
	if raw == "" {
		return tenant{}
	}
	return tenant{name: p.laneName(raw), weight: p.config.Tenant.Weights[raw]}
}

// identity returns the raw identity from the first source that has one, "" where none does.
func (p *policy) identity(m *wire.Message, sources []source) string {
	for _, s := range sources {
		var id string
		switch {
		case s.path != nil:
			id = m.Metadata(s.path)
		case s.Header != "":
			value, _ := m.Header(strings.ToLower(s.Header))
			id = strings.TrimSpace(string(value))
		case s.Attribute != "":
			id = m.Attribute(s.Attribute)
		case s.APIKey:
			if principal, ok := p.principalByKey(apiKey(m)); ok {
				id = principal.ID
			}
		}
		if id != "" {
			return id
		}
	}
	return ""
}

// laneName is the only form of a tenant that leaves the process: it cannot be turned back and means nothing after a
// restart.
func (p *policy) laneName(raw string) string {
	mac := hmac.New(sha256.New, p.laneKey)
	mac.Write([]byte(raw))
	return "lane_" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// apiKey returns the credential of a request: the bearer token, or x-api-key.
func apiKey(m *wire.Message) string {
	if value, _ := m.Header("authorization"); len(value) > 7 && strings.EqualFold(string(value[:7]), "bearer ") {
		return strings.TrimSpace(string(value[7:]))
	}
	value, _ := m.Header("x-api-key")
	return strings.TrimSpace(string(value))
}

// principalByKey finds the principal of an API key. Only hashes are stored and compared, in constant time.
func (p *policy) principalByKey(key string) (lease.Principal, bool) {
	if key == "" || len(p.keys) == 0 {
		return lease.Principal{}, false
	}
	hash := sha256.Sum256([]byte(key))
	var found lease.Principal
	ok := 0
	for known, principal := range p.keys {
		if subtle.ConstantTimeCompare(known[:], hash[:]) == 1 {
			found, ok = principal, 1
		}
	}
	return found, ok == 1
}

func (p *policy) verifyParent(token string) (adaptive.Parent, bool) {
	if token == "" {
		return adaptive.Parent{}, false
	}
	parent, err := p.parents.Verify(token)
	return parent, err == nil
}
