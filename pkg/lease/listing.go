package lease

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxListedEvents = 1000
	opaqueLength    = 16 // hex characters of a hash: enough to tell apart, too few to be mistaken for the value
)

// PoolListing is the state of a pool, for operators.
type PoolListing struct {
	Pool        string              `json:"pool"`
	Connections []ConnectionListing `json:"connections"`
	Events      []Event             `json:"events,omitempty"`
	Error       string              `json:"error,omitempty"` // the store did not answer
}

// ConnectionListing is one connection: leased, in cooldown or free.
type ConnectionListing struct {
	ID         string        `json:"id"`
	Cluster    string        `json:"cluster,omitempty"`
	State      string        `json:"state"`
	Configured bool          `json:"configured"` // false: leased, but taken out of the configuration
	Cooldown   *time.Time    `json:"cooldownUntil,omitempty"`
	Lease      *LeaseListing `json:"lease,omitempty"`
}

// LeaseListing is a live lease. Owner and principal are opaque.
type LeaseListing struct {
	Owner      string    `json:"owner"`
	Principal  string    `json:"principal"`
	Generation int64     `json:"generation"`
	Token      int64     `json:"token"` // fencing token on the connection
	AcquiredAt time.Time `json:"acquiredAt"`
	RenewedAt  time.Time `json:"renewedAt"`
	ExpiresAt  time.Time `json:"expiresAt"`
}

// Event is one entry of a pool's history.
type Event struct {
	At         time.Time `json:"at"`
	Event      string    `json:"event"` // acquired, renewed, released, expired, invalidated, moved
	Owner      string    `json:"owner"`
	Generation string    `json:"generation"`
	Connection string    `json:"connection"`
	From       string    `json:"from,omitempty"`   // moved
	Reason     EndReason `json:"reason,omitempty"` // why it ended or moved
}

// ListHandler serves GET with the state of every pool, for the admin port: it shows no secret, but all connections. The
// query parameter "pool" chooses one pool, "events" asks for that many of the latest events of each.
func (s *Service) ListHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		events, err := strconv.Atoi(r.URL.Query().Get("events"))
		if err != nil || events < 0 {
			events = 0
		}
		var out struct {
			Pools []PoolListing `json:"pools"`
		}
		v, status := s.view(), http.StatusOK
		for _, name := range v.poolNames {
			if want := r.URL.Query().Get("pool"); want != "" && want != name {
				continue
			}
			listing, err := s.listPool(r.Context(), v, v.pools[name], min(events, maxListedEvents))
			if err != nil {
				listing.Error, status = err.Error(), http.StatusServiceUnavailable
			}
			out.Pools = append(out.Pools, listing)
		}
		body, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			http.Error(w, "cannot encode", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		writeJSON(w, status, append(body, '\n'))
	})
}

// List returns the state of a pool with its latest events, newest first.
func (s *Service) List(ctx context.Context, poolName string, events int) (PoolListing, error) {
	v := s.view()
	p := v.pools[poolName]
	if p == nil {
		return PoolListing{Pool: poolName}, nil
	}
	return s.listPool(ctx, v, p, events)
}

func (s *Service) listPool(ctx context.Context, v *view, p *pool, events int) (PoolListing, error) {
	out := PoolListing{Pool: p.name, Connections: []ConnectionListing{}}
	c, err := v.store.contents(ctx, p, events)
	if err != nil {
		return out, err
	}
	leased := map[string]Lease{}
	for _, h := range c.held {
		leased[h.Connection] = h
	}
	for _, one := range p.connections {
		out.Connections = append(out.Connections, listConnection(one.ID, one.Cluster, true, leased, c.cooldowns))
		delete(leased, one.ID)
	}
	for _, id := range sortedKeys(leased) {
		out.Connections = append(out.Connections, listConnection(id, "", false, leased, c.cooldowns))
	}
	out.Events = c.events
	return out, nil
}

func listConnection(id, cluster string, configured bool, leased map[string]Lease, cooldowns map[string]time.Time) ConnectionListing {
	c := ConnectionListing{ID: id, Cluster: cluster, State: "free", Configured: configured}
	if until, cooling := cooldowns[id]; cooling {
		c.State, c.Cooldown = "cooldown", &until
	}
	if h, held := leased[id]; held {
		c.State = "leased"
		listing := h.listing()
		c.Lease = &listing
	}
	return c
}

func (l Lease) listing() LeaseListing {
	return LeaseListing{
		Owner: opaque("own_", string(l.owner)), Principal: opaque("prn_", l.principal), Generation: l.Generation, Token: l.token,
		AcquiredAt: l.AcquiredAt, RenewedAt: l.RenewedAt, ExpiresAt: l.ExpiresAt,
	}
}

// opaque shortens a hash.
func opaque(prefix, hash string) string { return prefix + hash[:min(opaqueLength, len(hash))] }

// contents is what a pool holds.
type contents struct {
	held      []Lease
	cooldowns map[string]time.Time // until when, by connection
	events    []Event              // newest first
}

// contents reads a pool with so many of its latest events.
func (s *store) contents(ctx context.Context, p *pool, events int) (contents, error) {
	r, err := s.do(ctx, p, &call{script: s.scripts.list, keys: p.keys.both(), args: []any{events}})
	if err != nil {
		return contents{}, err
	}
	c := contents{cooldowns: map[string]time.Time{}}
	for _, one := range r.list(0) {
		if pair, ok := one.([]any); ok {
			c.held = append(c.held, leaseOf(p, reply{now: r.now, rest: pair}))
		}
	}
	for _, one := range r.list(1) {
		if pair, ok := one.([]any); ok && len(pair) == 2 {
			c.cooldowns[text(pair[0])] = moment(numeric(pair[1]))
		}
	}
	for _, one := range r.list(2) {
		if pair, ok := one.([]any); ok && len(pair) == 2 {
			c.events = append(c.events, readEvent(text(pair[0]), texts(pair[1])))
		}
	}
	return c, nil
}

func texts(v any) []string {
	all, _ := v.([]any)
	list := make([]string, len(all))
	for i, one := range all {
		list[i] = text(one)
	}
	return list
}

// readEvent reads an entry of the history: its identifier, whose part before the dash is the store's clock in ms, and its
// fields and values in turns.
func readEvent(id string, pairs []string) Event {
	fields := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		if len(pair) == 2 {
			fields[pair[0]] = pair[1]
		}
	}
	ms, _, _ := strings.Cut(id, "-")
	return Event{
		At: moment(number(ms)), Event: fields["event"], Owner: opaque("own_", fields["owner"]), Generation: fields["generation"],
		Connection: fields["connection"], From: fields["from"], Reason: EndReason(fields["reason"]),
	}
}
