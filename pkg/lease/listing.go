package lease

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
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

// ConnectionListing is one connection: leased, resting or free.
type ConnectionListing struct {
	ID         string        `json:"id"`
	Cluster    string        `json:"cluster,omitempty"`
	State      string        `json:"state"`
	Configured bool          `json:"configured"` // false: leased, but taken out of the configuration
	RestsUntil *time.Time    `json:"restsUntil,omitempty"`
	Lease      *LeaseListing `json:"lease,omitempty"`
}

// LeaseListing is a live lease. Owner and principal are opaque.
type LeaseListing struct {
	Owner      string    `json:"owner"`
	Principal  string    `json:"principal"`
	Generation int64     `json:"generation"`
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
	held, rests, err := s.read(ctx, v, p)
	if err != nil {
		return out, err
	}
	leased := map[string]holder{}
	for _, h := range held {
		leased[h.connection] = h
	}
	for _, c := range p.connections {
		out.Connections = append(out.Connections, listConnection(c.ID, c.Cluster, true, leased, rests))
		delete(leased, c.ID)
	}
	for _, id := range sortedKeys(leased) {
		out.Connections = append(out.Connections, listConnection(id, "", false, leased, rests))
	}
	if events > 0 {
		out.Events, err = v.store.events(ctx, p, events)
	}
	return out, err
}

func listConnection(id, cluster string, configured bool, leased map[string]holder, rests map[string]time.Time) ConnectionListing {
	c := ConnectionListing{ID: id, Cluster: cluster, State: "free", Configured: configured}
	if until, resting := rests[id]; resting {
		c.State, c.RestsUntil = "resting", &until
	}
	if h, held := leased[id]; held {
		c.State = "leased"
		c.Lease = &LeaseListing{
			Owner: opaque("own_", string(h.owner)), Principal: opaque("prn_", h.principal), Generation: h.generation,
			AcquiredAt: h.acquiredAt, RenewedAt: h.renewedAt, ExpiresAt: h.expires,
		}
	}
	return c
}

// opaque shortens a hash.
func opaque(prefix, hash string) string { return prefix + hash[:min(opaqueLength, len(hash))] }

// events reads the newest events of a pool.
func (s *store) events(ctx context.Context, p *pool, n int) ([]Event, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	messages, err := s.client.XRevRangeN(ctx, p.keys.events, "+", "-", int64(n)).Result()
	if err != nil {
		return nil, failed("events", err)
	}
	var events []Event
	for _, m := range messages {
		events = append(events, readEvent(m))
	}
	return events, nil
}

func readEvent(m redis.XMessage) Event {
	field := func(name string) string { return text(m.Values[name]) }
	e := Event{
		Event: field("event"), Owner: opaque("own_", field("owner")), Generation: field("generation"),
		Connection: field("connection"), From: field("from"), Reason: EndReason(field("reason")),
	}
	var ms int64
	for _, c := range m.ID { // the part before the dash is the store's clock in ms
		if c < '0' || c > '9' {
			break
		}
		ms = ms*10 + int64(c-'0')
	}
	e.At = time.UnixMilli(ms).UTC()
	return e
}
