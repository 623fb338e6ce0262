package lease

import (
	"maps"
	"slices"
	"time"
)

// view is one configuration, immutable once made.
type view struct {
	settings   Settings
	ttl        time.Duration // clamped
	principals *principals
	configured []Principal
	pools      map[string]*pool
	poolNames  []string // sorted
	store      *store
}

// pool is a pool's connections with their keys.
type pool struct {
	name        string
	keys        keys
	connections []ConnectionSettings
	byID        map[string]ConnectionSettings
	gatewayAuth bool
	listsModels bool // some connection serves listed models only
}

func newView(s Settings, list []Principal, st *store) (*view, error) {
	known, err := newPrincipals(list)
	if err != nil {
		return nil, err
	}
	v := &view{
		settings: s, ttl: min(max(s.TTL, minTTL), maxTTL), principals: known, configured: list,
		pools: map[string]*pool{}, poolNames: sortedKeys(s.Pools), store: st,
	}
	for name, ps := range s.Pools {
		p := &pool{name: name, keys: newKeys(s.Store.Redis.KeyPrefix, name), connections: ps.Connections,
			byID: map[string]ConnectionSettings{}, gatewayAuth: ps.GatewayAuth}
		for _, c := range ps.Connections {
			p.byID[c.ID] = c
			p.listsModels = p.listsModels || c.listsModels()
		}
		v.pools[name] = p
	}
	return v, nil
}

// pool finds a pool. An unknown one is a fault of the configuration, not of the client.
func (v *view) pool(name string) (*pool, *Refusal) {
	if p := v.pools[name]; p != nil {
		return p, nil
	}
	return nil, refuse(ServiceUnavailable)
}

// label is the pool's name for counters: a configured one or nothing.
func (p *pool) label() string {
	if p == nil {
		return ""
	}
	return p.name
}

// candidates are the connections id may use that serve all the models, in order of preference. An empty model is any.
func (p *pool) candidates(id Identity, models ...string) []string {
	var ids []string
	for _, c := range p.connections {
		if c.servesAll(models) && id.allows(c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// eligible says why a bound connection may not be used any more by a lease that was acquired for a model, for a request
// that names one; "" when it may.
func (p *pool) eligible(id Identity, leased, requested, connection string) EndReason {
	c, known := p.byID[connection]
	switch {
	case !known:
		return ConnectionIneligible
	case !id.allows(connection):
		return AuthorizationChanged
	case !c.servesAll([]string{leased, requested}):
		return ModelIneligible
	default:
		return ""
	}
}

func (c ConnectionSettings) servesAll(models []string) bool {
	return !slices.ContainsFunc(models, func(m string) bool { return !c.serves(m) })
}

// serves says whether the connection serves a model; one without a list serves every model.
func (c ConnectionSettings) serves(model string) bool {
	return model == "" || !c.listsModels() || slices.Contains(c.Models, model)
}

func (c ConnectionSettings) listsModels() bool {
	return len(c.Models) > 0 && !slices.Contains(c.Models, "*")
}

// allows says whether the identity may use a connection: a managed one those on its list, others all.
func (id Identity) allows(connection string) bool {
	return !id.Managed || slices.Contains(id.Connections, connection)
}

// poolsOf are the pools that hold a connection of id's list, in the order of their names.
func (v *view) poolsOf(id Identity) []*pool {
	var found []*pool
	for _, name := range v.poolNames {
		p := v.pools[name]
		if slices.ContainsFunc(id.Connections, func(c string) bool { _, ok := p.byID[c]; return ok }) {
			found = append(found, p)
		}
	}
	return found
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
