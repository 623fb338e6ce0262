package lease

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody      = 16 << 10
	bodyDeadline = 5 * time.Second // for a body of at most 16 KiB
	actDeadline  = 2 * time.Second // for the action; calls of the store have deadlines of their own
	isoMillis    = "2006-01-02T15:04:05.000Z07:00"
)

// browserHeaders are those that a page may send after a preflight: what clients have to send, and nothing that names a caller.
const browserHeaders = "authorization, content-type, x-api-key, " + OwnerHeader + ", " + GenerationHeader

// Handler serves the HTTP API at whatever path it is mounted on. identify says who calls, or refuses with
// LEASE_AUTHENTICATION_REQUIRED or LEASE_API_KEY_INVALID; Service.IdentifyRequest reads API keys.
//
// The query parameter "pool" chooses the pool. Without it those that hold connections of the principal are tried, in the
// order of their names. An owner has a lease in one pool at a time.
func (s *Service) Handler(identify func(*http.Request) (Identity, *Refusal)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Access-Control-Allow-Origin", "*") // what counts is the key, which no browser sends by itself
		switch r.Method {
		case http.MethodPost:
			h.Set("Access-Control-Expose-Headers", "retry-after, x-headgate-reason")
			s.serveAction(w, r, identify)
		case http.MethodOptions:
			h.Set("Allow", "POST, OPTIONS")
			h.Set("Access-Control-Allow-Methods", "POST")
			h.Set("Access-Control-Allow-Headers", browserHeaders)
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
		default:
			h.Set("Allow", "POST, OPTIONS")
			writeRefusal(w, http.StatusMethodNotAllowed, refuse(ActionInvalid))
		}
	})
}

// serveAction answers in the promised order: who, what, allowed to, for whom, and only then does anything.
func (s *Service) serveAction(w http.ResponseWriter, r *http.Request, identify func(*http.Request) (Identity, *Refusal)) {
	identity, refusal := identify(r)
	if refusal != nil {
		deny(w, refusal)
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		deny(w, refuse(ContentTypeRequired))
		return
	}
	body, status := readBody(w, r)
	if status != 0 {
		writeRefusal(w, status, refuse(ActionInvalid))
		return
	}
	act, refusal := parseAction(body)
	if refusal == nil {
		refusal = managedOnly(identity)
	}
	var owner Owner
	if refusal == nil {
		owner, refusal = ParseOwner(ownerHeader(r.Header))
	}
	if refusal != nil {
		deny(w, refusal)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actDeadline)
	defer cancel()
	lease, refusal := s.perform(ctx, act, Ask{Owner: owner, Generation: act.generation, Identity: identity}, r.URL.Query().Get("pool"))
	if refusal != nil {
		deny(w, refusal)
		return
	}
	s.writeLease(w, act.name, lease)
}

// ownerHeader is the owner header's value. Two of them are joined, which no owner matches.
func ownerHeader(h http.Header) string { return strings.Join(h.Values(OwnerHeader), ",") }

// readBody reads at most 16 KiB; otherwise it returns the status to answer with.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, status int) {
	// Best effort: a server without deadlines has its own.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyDeadline))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, http.StatusRequestEntityTooLarge
	}
	if err != nil {
		return nil, http.StatusBadRequest
	}
	return body, 0
}

// perform runs the action in the pool that was chosen, or in the one that knows the answer.
func (s *Service) perform(ctx context.Context, act action, a Ask, chosen string) (Lease, *Refusal) {
	v := s.view()
	pools := v.poolsOf(a.Identity)
	if chosen != "" {
		pools = slices.DeleteFunc(pools, func(p *pool) bool { return p.name != chosen })
	}
	if act.name == "acquire" {
		return s.acquireIn(ctx, v, pools, act, a)
	}
	last := refuse(FenceStale)
	for _, p := range pools {
		a.Pool = p.name
		lease, refusal := s.performIn(ctx, act, a)
		if refusal == nil || refusal.Reason != FenceStale {
			return lease, refusal
		}
	}
	return Lease{}, last
}

// acquireIn acquires in one of the pools: in the one where the owner has a lease, otherwise in the first that has a free
// connection. An owner whose lease is in a pool that is none of them gets LEASE_FENCE_STALE.
func (s *Service) acquireIn(ctx context.Context, v *view, pools []*pool, act action, a Ask) (Lease, *Refusal) {
	if wait := s.acquires.wait(a.Identity.Principal, v.settings.AcquireRate); wait > 0 {
		return Lease{}, s.refused("acquire", "", refuseFor(RateLimited, wait, 0))
	}
	if len(v.pools) > 1 {
		home, refusal := s.homeOf(ctx, v, a.Owner, nil)
		if refusal != nil {
			return Lease{}, refusal
		}
		if home != nil && !slices.Contains(pools, home) {
			return Lease{}, s.refused("acquire", home.name, refuse(FenceStale))
		}
		if home != nil {
			pools = []*pool{home}
		}
	}
	last := refuse(NoEligibleConnection)
	for _, p := range pools {
		a.Pool = p.name
		lease, refusal := s.Acquire(ctx, a, act.model)
		switch {
		case refusal == nil && lease.Outcome == "ACQUIRED" && len(v.pools) > 1:
			return s.aloneIn(ctx, v, p, a, lease)
		case refusal == nil:
			return lease, nil
		case !refusal.passing():
			return Lease{}, refusal
		}
		last = soonest(last, refusal)
	}
	return Lease{}, last
}

// homeOf is the pool in which an owner has a live lease, nil without one; except is not looked at.
func (s *Service) homeOf(ctx context.Context, v *view, o Owner, except *pool) (*pool, *Refusal) {
	for _, name := range v.poolNames {
		p := v.pools[name]
		if p == except {
			continue
		}
		r, err := v.store.read(ctx, p, v.store.scripts.held, string(o), "")
		if err != nil {
			return nil, s.unavailable("acquire", p.name, err)
		}
		if r.int(0) > 0 {
			return p, nil
		}
	}
	return nil, nil
}

// aloneIn gives a new lease back where the owner got another one in another pool at the same time: pools know nothing of
// each other.
func (s *Service) aloneIn(ctx context.Context, v *view, p *pool, a Ask, l Lease) (Lease, *Refusal) {
	home, refusal := s.homeOf(ctx, v, a.Owner, p)
	if home == nil && refusal == nil {
		return l, nil
	}
	a.Generation = l.Generation
	_, _ = s.Release(ctx, a, ClientCancelled) // else it expires
	if refusal == nil {
		refusal = s.refused("acquire", p.name, refuse(FenceStale))
	}
	return Lease{}, refusal
}

// passing says that another pool may still do what this one refused.
func (r *Refusal) passing() bool {
	return r.Reason == NoEligibleConnection || r.Reason == CapacityUnavailable || r.Reason == EligibilityUnavailable
}

// soonest joins the refusals of two pools: connections that are held before those in cooldown before none, and of two alike
// the one that passes first.
func soonest(a, b *Refusal) *Refusal {
	rank := map[Reason]int{NoEligibleConnection: 0, EligibilityUnavailable: 1, CapacityUnavailable: 2}
	switch {
	case rank[a.Reason] > rank[b.Reason]:
		return a
	case rank[a.Reason] < rank[b.Reason]:
		return b
	}
	return &Refusal{Reason: a.Reason, RetryAfter: min(a.RetryAfter, b.RetryAfter), Eligible: a.Eligible + b.Eligible}
}

func (s *Service) performIn(ctx context.Context, act action, a Ask) (Lease, *Refusal) {
	switch act.name {
	case "renew":
		return s.Renew(ctx, a)
	case "release":
		return s.Release(ctx, a, act.reason)
	default:
		return s.Status(ctx, a)
	}
}

type leaseBody struct {
	State      string          `json:"state"`
	Generation int64           `json:"generation"`
	AcquiredAt string          `json:"acquiredAt"`
	RenewedAt  string          `json:"renewedAt"`
	ExpiresAt  string          `json:"expiresAt"`
	Connection *connectionBody `json:"connection,omitempty"`
}

type connectionBody struct {
	DisplayName *string `json:"displayName"`
	Provider    string  `json:"provider"`
}

// writeLease answers 200. Nothing that names an owner, a key or a connection leaves here, only what the configuration
// calls a display name and a provider.
func (s *Service) writeLease(w http.ResponseWriter, action string, l Lease) {
	body := leaseBody{
		State: l.State, Generation: l.Generation, AcquiredAt: l.AcquiredAt.UTC().Format(isoMillis),
		RenewedAt: l.RenewedAt.UTC().Format(isoMillis), ExpiresAt: l.ExpiresAt.UTC().Format(isoMillis),
	}
	if action == "status" {
		body.Connection = &connectionBody{}
		if p := s.view().pools[l.Pool]; p != nil {
			c := p.byID[l.Connection]
			body.Connection.Provider = c.Provider
			if c.DisplayName != "" && !strings.Contains(c.DisplayName, "@") { // an account's name, not a person's address
				body.Connection.DisplayName = &c.DisplayName
			}
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		deny(w, refuse(ServiceUnavailable))
		return
	}
	writeJSON(w, http.StatusOK, text)
}

func deny(w http.ResponseWriter, r *Refusal) { writeRefusal(w, r.Reason.Answer().HTTP, r) }

func writeRefusal(w http.ResponseWriter, status int, r *Refusal) {
	w.Header().Set("X-Headgate-Reason", string(r.Reason))
	w.Header().Set("X-Should-Retry", strconv.FormatBool(r.shouldRetry()))
	if seconds := r.retryAfterSeconds(); seconds > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		w.Header().Set("Retry-After-Ms", strconv.FormatInt(r.RetryAfter.Milliseconds(), 10))
	}
	writeJSON(w, status, r.Body())
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON, and an error means that the client has gone
}
