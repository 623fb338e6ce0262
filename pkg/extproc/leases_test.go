package extproc

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

// Owners of the lease tests.
var (
	ownerA = "vlo_" + strings.Repeat("A", 43)
	ownerB = "vlo_" + strings.Repeat("B", 43)
)

// leased gives the cluster chat a pool of two connections and two managed principals.
func leased(mode lease.Mode, edit func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.Clusters["chat"] = config.Cluster{
			Lanes: adaptive.DefaultSettings(), Lease: lease.ClusterSettings{Mode: mode, Pool: "pool"},
		}
		c.Leases.Pools = map[string]lease.PoolSettings{"pool": {Connections: []lease.ConnectionSettings{
			{ID: "acct-1", Cluster: "one", Models: []string{"*"}}, {ID: "acct-2", Cluster: "two", Models: []string{"*"}},
		}}}
		c.Principals = []lease.Principal{
			{ID: "team-a", KeySHA256: lease.HashKey("key-a"), Scopes: []string{"lease:exclusive"}, Connections: []string{"acct-1", "acct-2"}},
			{ID: "team-b", KeySHA256: lease.HashKey("key-b"), Scopes: []string{"lease:exclusive"}, Connections: []string{"acct-1", "acct-2"}},
			{ID: "plain", KeySHA256: lease.HashKey("key-c")},
		}
		if edit != nil {
			edit(c)
		}
	}
}

// acquire takes a lease as the API does.
func (r *rig) acquire(key, owner string) lease.Lease { return r.acquireFor(key, owner, "demo") }

func (r *rig) acquireFor(key, owner, model string) lease.Lease {
	r.t.Helper()
	id, ok := r.leases.IdentifyKey(key)
	if !ok {
		r.t.Fatalf("key %s is not known", key)
	}
	o, refusal := lease.ParseOwner(owner)
	if refusal != nil {
		r.t.Fatalf("owner: %v", refusal)
	}
	l, refusal := r.leases.Acquire(context.Background(), lease.Ask{Pool: "pool", Owner: o, Identity: id}, model)
	if refusal != nil {
		r.t.Fatalf("acquire: %v", refusal.Reason)
	}
	return l
}

// withLease are the headers of a request under a lease.
func withLease(key, owner, generation string, more ...string) *extprocv3.ProcessingRequest {
	return rh(early, true, append([]string{
		":method", "GET", "authorization", "Bearer " + key, "x-omniroute-lease-owner", owner, "x-omniroute-lease-generation", generation,
	}, more...)...)
}

func TestFence(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	l := r.acquire("key-a", ownerA)
	other := r.acquire("key-b", ownerB)
	generation := strconv.FormatInt(l.Generation, 10)
	token := r.parents.Issue(adaptive.Parent{Lane: "x", Cluster: "chat", Depth: 1})
	for _, c := range []struct {
		name    string
		request *extprocv3.ProcessingRequest
		status  int
		reason  string
	}{
		{"no owner", rh(early, true, ":method", "GET", "authorization", "Bearer key-a"), 400, "LEASE_CONTEXT_REQUIRED"},
		{"owner malformed", withLease("key-a", "vlo_short", generation), 400, "LEASE_CONTEXT_INVALID"},
		{"generation missing", withLease("key-a", ownerA, ""), 400, "LEASE_CONTEXT_INVALID"},
		{"generation malformed", withLease("key-a", ownerA, "01"), 400, "LEASE_CONTEXT_INVALID"},
		{"two owners, the right one first", withLease("key-a", ownerA, generation, "x-omniroute-lease-owner", ownerB), 400, "LEASE_CONTEXT_INVALID"},
		{"two owners, the right one last", withLease("key-a", ownerB, generation, "x-omniroute-lease-owner", ownerA), 400, "LEASE_CONTEXT_INVALID"},
		{"the same owner twice", withLease("key-a", ownerA, generation, "x-omniroute-lease-owner", ownerA), 400, "LEASE_CONTEXT_INVALID"},
		{"two generations", withLease("key-a", ownerA, generation, "x-omniroute-lease-generation", "1"), 400, "LEASE_CONTEXT_INVALID"},
		{"no lease", withLease("key-a", "vlo_"+strings.Repeat("C", 43), generation), 409, "LEASE_REQUIRED"},
		{"a later generation", withLease("key-a", ownerA, strconv.FormatInt(l.Generation+1, 10)), 409, "LEASE_FENCE_STALE"},
		{"another principal", withLease("key-b", ownerA, generation), 409, "LEASE_FENCE_STALE"},
		{"a key that nobody has", withLease("nobody", ownerA, generation), 401, "LEASE_API_KEY_INVALID"},
		{"no principal", rh(early, true, ":method", "GET", "x-omniroute-lease-owner", ownerA, "x-omniroute-lease-generation", generation), 409, "LEASE_FENCE_STALE"},
		{"pinned elsewhere", withLease("key-a", ownerA, generation, "x-omniroute-connection", other.Connection), 409, "LEASE_CONNECTION_MISMATCH"},
		{"fans out", withLease("key-a", ownerA, generation, "x-headgate-parent", token), 409, "LEASE_UNSUPPORTED_ROUTE"},
	} {
		s := r.open()
		s.send(c.request)
		s.refused(c.status, c.reason)
		if t.Failed() {
			t.Fatal(c.name)
		}
	}

	s := r.open()
	s.send(withLease("key-a", ownerA, generation, "x-omniroute-connection", l.Connection))
	common := s.wants("RH")[0].GetRequestHeaders().GetResponse()
	set := map[string]string{}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	if set["x-omniroute-connection"] != l.Connection || set["x-omniroute-lease-generation"] != generation || !common.GetClearRouteCache() {
		t.Errorf("set %v, route cache cleared %v; want the connection, the generation and true", set, common.GetClearRouteCache())
	}
	if removed := common.GetHeaderMutation().GetRemoveHeaders(); len(removed) != 1 || removed[0] != "x-omniroute-lease-owner" {
		t.Errorf("removed %q, want the owner alone", removed)
	}
	s.send(sh("200", true))
	s.wants("SH")
	s.finish()
	s = r.open()
	s.send(withLease("key-a", ownerA, generation))
	s.wants("RH") // the end of a response is not the end of the lease
	s.finish()
}

// answeredBy says on response headers who answered, as Envoy does.
func answeredBy(details string, m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
		"response.code_details": structpb.NewStringValue(details),
	}}}
	return m
}

// TestCooldown: an upstream that answers 429 is left alone, and its lease moves at the next request.
func TestCooldown(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	l := r.acquire("key-a", ownerA)
	generation := strconv.FormatInt(l.Generation, 10)
	s := r.open()
	s.send(withLease("key-a", ownerA, generation))
	s.wants("RH")
	s.send(answeredBy("via_upstream", sh("429", true, "retry-after", "60")))
	s.wants("SH")
	s.finish()
	r.server.Close() // the cooldown begins in the background
	s = r.open()
	s.send(withLease("key-a", ownerA, generation))
	for _, h := range s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		value := string(h.GetHeader().GetRawValue())
		if h.GetHeader().GetKey() == "x-omniroute-connection" && value == l.Connection {
			t.Errorf("sent to the connection in cooldown, %s, want the other", value)
		}
		if h.GetHeader().GetKey() == "x-omniroute-lease-generation" && (len(value) < len(generation) || value <= generation) {
			t.Errorf("fencing token %s after the move, want one above %s", value, generation)
		}
	}
	s.finish()
}

// TestWhoAnswered: what Envoy answered itself puts no connection into cooldown, nor does what nobody says who answered.
func TestWhoAnswered(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	l := r.acquire("key-a", ownerA)
	request := withLease("key-a", ownerA, strconv.FormatInt(l.Generation, 10))
	for _, answer := range []*extprocv3.ProcessingRequest{
		answeredBy("request_rate_limited", sh("429", true, "retry-after", "60")),
		answeredBy("", sh("429", true, "retry-after", "60")),
		sh("429", true, "retry-after", "60"),
	} {
		s := r.open()
		s.send(request)
		s.wants("RH")
		s.send(answer)
		s.wants("SH")
		s.finish()
	}
	r.server.Close()
	s := r.open()
	s.send(request)
	for _, h := range s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if value := string(h.GetHeader().GetRawValue()); h.GetHeader().GetKey() == "x-omniroute-connection" && value != l.Connection {
			t.Errorf("the lease moved to %s, want it to stay on %s", value, l.Connection)
		}
	}
	s.finish()
}

// TestManagedMode: unmanaged requests are kept off leased connections, and need no lease.
func TestManagedMode(t *testing.T) {
	r := newRig(t, leased(lease.ModeManaged, nil))
	l := r.acquire("key-a", ownerA)
	for _, headers := range [][]string{nil, {"authorization", "Bearer key-c"}} {
		s := r.open()
		s.send(rh(early, true, append([]string{":method", "GET"}, headers...)...))
		for _, h := range s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if value := string(h.GetHeader().GetRawValue()); h.GetHeader().GetKey() == "x-omniroute-connection" && value == l.Connection {
				t.Errorf("unmanaged %v sent to the leased connection %s", headers, value)
			}
		}
		s.finish()
	}
	s := r.open()
	s.send(rh(early, true, ":method", "GET", "authorization", "Bearer key-b"))
	s.refused(400, "LEASE_CONTEXT_REQUIRED")
	r.acquire("key-b", ownerB)
	s = r.open()
	s.send(rh(early, true, ":method", "GET"))
	status, reason, retry, _ := s.refusal()
	if status != 429 || reason != "LEASE_CAPACITY_UNAVAILABLE" || retry == "" {
		t.Errorf("every connection is held: %d %s, retry-after %q; want 429 LEASE_CAPACITY_UNAVAILABLE with one", status, reason, retry)
	}
}

// TestTheOwnerGoesNoFurther: the owner is removed from what the upstream gets, whether leases are looked at or not.
func TestTheOwnerGoesNoFurther(t *testing.T) {
	for _, mode := range []lease.Mode{lease.ModeOff, lease.ModeManaged} {
		r := newRig(t, leased(mode, nil))
		s := r.open()
		s.send(rh(early, true, ":method", "GET", "x-omniroute-lease-owner", ownerA, "x-omniroute-lease-owner", ownerB))
		removed := s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()
		if !slices.Contains(removed, "x-omniroute-lease-owner") {
			t.Errorf("mode %s: removed %q, want the owner among them", mode, removed)
		}
		s.finish()
	}
}

// TestUnknownKey: where API keys are a source of principals, a key that nobody has, or has any more, is refused; it is not
// taken for no key. A source before it that names the caller makes the key none of ours.
func TestUnknownKey(t *testing.T) {
	anonymous, nobody := []string{}, []string{"authorization", "Bearer nobody"}
	for _, c := range []struct {
		name    string
		mode    lease.Mode
		sources []config.Source
		headers []string
		status  int // 0: forwarded
		reason  string
	}{
		{"no key", lease.ModeManaged, nil, anonymous, 0, ""},
		{"a bearer token", lease.ModeManaged, nil, nobody, 401, "LEASE_API_KEY_INVALID"},
		{"x-api-key", lease.ModeManaged, nil, []string{"x-api-key", "nobody"}, 401, "LEASE_API_KEY_INVALID"},
		{"pinned", lease.ModeManaged, nil, append([]string{"x-omniroute-connection", "acct-2"}, nobody...), 401, "LEASE_API_KEY_INVALID"},
		{"a lease is required", lease.ModeRequired, nil, nobody, 401, "LEASE_API_KEY_INVALID"},
		{"leases are off", lease.ModeOff, nil, nobody, 0, ""},
		{"basic authentication is no key", lease.ModeManaged, nil, []string{"authorization", "Basic bm9ib2R5Og=="}, 0, ""},
		{"keys are no source", lease.ModeManaged, []config.Source{{Header: "x-caller"}}, nobody, 0, ""},
		{"named by a source before", lease.ModeManaged, []config.Source{{Header: "x-caller"}, {APIKey: true}}, append([]string{"x-caller", "ci"}, nobody...), 0, ""},
		{"named by a source after", lease.ModeManaged, []config.Source{{APIKey: true}, {Header: "x-caller"}}, append([]string{"x-caller", "ci"}, nobody...), 401, "LEASE_API_KEY_INVALID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, leased(c.mode, func(cfg *config.Config) {
				if c.sources != nil {
					cfg.PrincipalSources = c.sources
				}
			}))
			s := r.open()
			s.send(rh(early, true, append([]string{":method", "GET"}, c.headers...)...))
			if c.status != 0 {
				s.refused(c.status, c.reason)
				return
			}
			s.wants("RH")
			s.finish()
		})
	}
}

// TestRevokedKey: a key that is taken out of the configuration gets no more than it had.
func TestRevokedKey(t *testing.T) {
	r := newRig(t, leased(lease.ModeManaged, nil))
	get := rh(early, true, ":method", "GET", "authorization", "Bearer key-a")
	s := r.open()
	s.send(get)
	s.refused(400, "LEASE_CONTEXT_REQUIRED")
	without := *r.config
	without.Principals = without.Principals[1:]
	if err := r.leases.Configure(without.Leases, without.Principals); err != nil {
		t.Fatal(err)
	}
	r.server.Configure(&without)
	s = r.open()
	s.send(get)
	s.refused(401, "LEASE_API_KEY_INVALID")
}

// TestLettingGo: when the server lets its exchanges go, one whose lease it keeps alive goes too, unless it has to be cut when
// that is lost; then it stays, its lease is renewed, and it is cut.
func TestLettingGo(t *testing.T) {
	for _, onLost := range []string{"keep", "cut"} {
		t.Run(onLost, func(t *testing.T) {
			r := newRig(t, leased(lease.ModeRequired, func(c *config.Config) {
				c.Leases.TTL, c.Leases.OnLost = time.Second, onLost
			}))
			l := r.acquire("key-a", ownerA)
			s := r.open()
			s.send(withLease("key-a", ownerA, strconv.FormatInt(l.Generation, 10)))
			s.wants("RH")
			s.send(sh("200", false))
			s.wants("SH")
			r.server.LetGo()
			if onLost == "keep" {
				s.ended()
				return
			}
			time.Sleep(2 * time.Second) // two times to live
			if other := r.acquire("key-b", ownerB); other.Connection == l.Connection {
				t.Errorf("another owner acquired %s while the first one's response streams", l.Connection)
			}
			r.release("key-a", ownerA, l)
			s.refused(409, "LEASE_FENCE_STALE")
		})
	}
}

// release ends a lease as the API does.
func (r *rig) release(key, owner string, l lease.Lease) {
	r.t.Helper()
	id, _ := r.leases.IdentifyKey(key)
	o, _ := lease.ParseOwner(owner)
	if _, refusal := r.leases.Release(context.Background(), lease.Ask{Pool: "pool", Owner: o, Generation: l.Generation, Identity: id}, lease.OwnerExit); refusal != nil {
		r.t.Fatalf("release: %v", refusal.Reason)
	}
}

// TestLostLease: a lease that is found lost in mid-response ends the stream only where the configuration says so.
func TestLostLease(t *testing.T) {
	for _, onLost := range []string{"cut", "keep"} {
		t.Run(onLost, func(t *testing.T) {
			r := newRig(t, leased(lease.ModeRequired, func(c *config.Config) {
				c.Leases.TTL, c.Leases.OnLost = time.Second, onLost
			}))
			l := r.acquire("key-a", ownerA)
			s := r.open()
			s.send(withLease("key-a", ownerA, strconv.FormatInt(l.Generation, 10)))
			s.wants("RH")
			s.send(sh("200", false))
			s.wants("SH")
			r.release("key-a", ownerA, l)
			if onLost == "cut" {
				s.refused(409, "LEASE_FENCE_STALE") // which makes Envoy reset the client's stream
				return
			}
			s.silent(2 * time.Second)
			s.cancel()
		})
	}
}
