package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/headgate/headgate/internal/stack"
)

// session is a client of the lease API through Envoy.
type session struct {
	s          *stack.Stack
	c          *http.Client
	key, owner string
}

func (a session) do(t *testing.T, action string) (int, map[string]any) {
	t.Helper()
	got := must(t, a.s, a.c, request{method: "POST", path: "/v1/session-leases", body: strings.NewReader(action), length: int64(len(action)),
		headers: map[string]string{"content-type": "application/json", "authorization": "Bearer " + a.key, "x-omniroute-lease-owner": a.owner}})
	var fields map[string]any
	if err := json.Unmarshal([]byte(got.body), &fields); err != nil {
		t.Fatalf("%s: %d %q: %v", action, got.status, got.body, err)
	}
	return got.status, fields
}

// acquire returns the generation as text.
func (a session) acquire(t *testing.T) string {
	t.Helper()
	status, fields := a.do(t, `{"action":"acquire","model":"demo"}`)
	if status != 200 {
		t.Fatalf("acquire: %d %v, want 200", status, fields)
	}
	return fmt.Sprintf("%.0f", fields["generation"])
}

// get sends a leased request and returns the answer and what the upstream saw.
func (a session) get(t *testing.T, generation string, more ...string) (response, stack.Echo) {
	t.Helper()
	got := must(t, a.s, a.c, request{path: "/leased/echo", headers: a.headers(generation, more...)})
	var e stack.Echo
	if got.status == http.StatusOK {
		if err := json.Unmarshal([]byte(got.body), &e); err != nil {
			t.Fatal(err)
		}
	}
	return got, e
}

// TestLeasedRequests: a lease routes to its connection, the upstream can fence too, and nothing passes without one.
func TestLeasedRequests(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	protocols(t, func(t *testing.T, c *http.Client) {
		name := map[bool]string{true: "a", false: "b"}[strings.HasSuffix(t.Name(), "HTTP1")]
		a := session{s, c, "demo-key-a", "vlo_" + strings.Repeat(name, 43)}
		generation := a.acquire(t)
		got, seen := a.get(t, generation)
		connection := seen.Headers.Get("X-Omniroute-Connection")
		if got.status != 200 || (connection != "acct-1" && connection != "acct-2") || seen.Headers.Get("X-Omniroute-Lease-Generation") != generation {
			t.Errorf("leased request: %d, connection %q, generation %q; want 200, one of the two, %s", got.status, connection, seen.Headers.Get("X-Omniroute-Lease-Generation"), generation)
		}
		if owner := seen.Headers.Get("X-Omniroute-Lease-Owner"); owner != "" {
			t.Error("the upstream saw the owner, want it removed")
		}
		before, err := s.Envoy.Stats(t.Context(), "cluster."+connection+".upstream_rq_completed")
		if err != nil {
			t.Fatal(err)
		}
		a.get(t, generation, "x-omniroute-connection", connection)
		after, err := s.Envoy.Stats(t.Context(), "cluster."+connection+".upstream_rq_completed")
		if err != nil {
			t.Fatal(err)
		}
		if key := "cluster." + connection + ".upstream_rq_completed"; after[key] != before[key]+1 {
			t.Errorf("Envoy's cluster of the connection served %d requests before and %d after, want one more", before[key], after[key])
		}
		seenBefore := s.Upstream.CountsOf("/leased/echo").Seen
		for what, c := range map[string]struct {
			generation, owner string
			more              []string
			status            int
			reason            string
		}{
			"stale":            {"1", a.owner, nil, 409, "LEASE_FENCE_STALE"},
			"no owner":         {generation, "", nil, 400, "LEASE_CONTEXT_REQUIRED"},
			"pinned elsewhere": {generation, a.owner, []string{"x-omniroute-connection", "acct-3"}, 409, "LEASE_CONNECTION_MISMATCH"},
			"forged route":     {"", "", []string{"x-omniroute-connection", "acct-1"}, 400, "LEASE_CONTEXT_REQUIRED"},
		} {
			b := a
			b.owner = c.owner
			if got, _ := b.get(t, c.generation, c.more...); got.status != c.status || got.reason() != c.reason {
				t.Errorf("%s: %d %s, want %d %s", what, got.status, got.reason(), c.status, c.reason)
			}
		}
		if n := s.Upstream.CountsOf("/leased/echo").Seen; n != seenBefore {
			t.Errorf("the upstream saw %d of the refused requests, want 0", n-seenBefore)
		}
		if status, fields := a.do(t, `{"action":"release","generation":`+generation+`}`); status != 200 || fields["state"] != "RELEASED" {
			t.Errorf("release: %d %v, want 200 RELEASED", status, fields)
		}
		if got, _ := a.get(t, generation); got.status != 409 || got.reason() != "LEASE_REQUIRED" {
			t.Errorf("after the release: %d %s, want 409 LEASE_REQUIRED", got.status, got.reason())
		}
	})
}

// TestUpstreamsNeverSeeTheOwner: neither where leases are off, nor while the sidecar is away and requests pass unchecked.
func TestUpstreamsNeverSeeTheOwner(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Envoy: []func(*stack.Bootstrap) error{(*stack.Bootstrap).FailOpen}},
		expectation{gone: true, faults: []string{"streams_failed", "failure_mode_allowed"}})
	c := client(t, false)
	owner := "vlo_" + strings.Repeat("s", 43)
	look := func(when, path string) {
		t.Helper()
		got := must(t, s, c, request{path: path, headers: map[string]string{"x-omniroute-lease-owner": owner}})
		if got.status != 200 || strings.Contains(got.body, owner) {
			t.Errorf("%s: %d %s, want 200 and an upstream that has not seen the owner", when, got.status, got.body)
		}
	}
	look("leases are off", "/echo")
	s.Sidecar.Kill()
	look("without the sidecar", "/echo")
	look("without the sidecar, on a cluster that looks at leases", "/leased/echo")
}

// TestKeysAndOwnersThroughEnvoy: on a cluster where a lease is optional, a key that nobody has, or has any more, gets
// nothing; and of two owners none counts.
func TestKeysAndOwnersThroughEnvoy(t *testing.T) {
	t.Parallel()
	onLeaseStores(t, keysAndOwnersThroughEnvoy)
}

func keysAndOwnersThroughEnvoy(t *testing.T, st leaseStore) {
	const managed = "clusters: {leased: {lease: {mode: managed}}}\n"
	overlay := managed + "leases: {" + st.setting() + "}"
	s := start(t, stack.Options{Overlay: overlay})
	c := client(t, false)
	a := session{s, c, "demo-key-a", "vlo_" + strings.Repeat("k", 43)}
	generation := a.acquire(t)
	if got := must(t, s, c, request{path: "/leased/echo"}); got.status != 200 {
		t.Errorf("no key: %d %s, want 200", got.status, got.reason())
	}
	unknown := a
	unknown.key = "nobody"
	if got, _ := unknown.get(t, generation); got.status != 401 || got.reason() != "LEASE_API_KEY_INVALID" {
		t.Errorf("a key that nobody has: %d %s, want 401 LEASE_API_KEY_INVALID", got.status, got.reason())
	}
	out, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Envoy.URL()+"/leased/echo", nil)
	if err != nil {
		t.Fatal(err)
	}
	out.Header = http.Header{"Authorization": {"Bearer demo-key-a"}, "X-Omniroute-Lease-Generation": {generation},
		"X-Omniroute-Lease-Owner": {a.owner, "vlo_" + strings.Repeat("x", 43)}}
	in, err := c.Do(out)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Body.Close()
	if reason := in.Header.Get("X-Headgate-Reason"); in.StatusCode != 400 || reason != "LEASE_CONTEXT_INVALID" {
		t.Errorf("two owners: %d %s, want 400 LEASE_CONTEXT_INVALID", in.StatusCode, reason)
	}
	got, seen := a.get(t, generation)
	if got.status != 200 {
		t.Errorf("the lease: %d %s, want 200", got.status, got.reason())
	}
	bound := seen.Headers.Get("X-Omniroute-Connection")
	twice := out.Clone(t.Context())
	twice.Header["X-Omniroute-Lease-Owner"] = []string{a.owner}
	twice.Header["X-Omniroute-Connection"] = []string{bound, "acct-9"}
	in, err = c.Do(twice)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Body.Close()
	seen = stack.Echo{}
	if err := json.NewDecoder(in.Body).Decode(&seen); err != nil || !slices.Equal(seen.Headers.Values("X-Omniroute-Connection"), []string{bound}) {
		t.Errorf("pinned twice: %d, the upstream saw the connections %q (%v), want %s alone", in.StatusCode, seen.Headers.Values("X-Omniroute-Connection"), err, bound)
	}
	preflight := must(t, s, c, request{method: "OPTIONS", path: "/v1/session-leases", headers: map[string]string{
		"origin": "https://app.example", "access-control-request-method": "POST", "access-control-request-headers": "content-type,x-omniroute-lease-owner"}})
	if allowed := preflight.header.Get("Access-Control-Allow-Headers"); preflight.status != 204 || !strings.Contains(allowed, "x-omniroute-lease-owner") {
		t.Errorf("a browser's preflight: %d and %q, want 204 and the owner header among what may be sent", preflight.status, allowed)
	}
	hash := health(t, s).Config.Hash
	// A setting that the embedded store does not use, and that a server's leases do not depend on.
	changed := managed + "leases: {store: {redis: {callTimeout: 2s}}}"
	if st.server != nil {
		changed = managed + "leases: {" + strings.Replace(st.setting(), "1s", "2s", 1) + "}"
	}
	if err := s.Reconfigure("", changed); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reload", func() bool { return health(t, s).Config.Hash != hash })
	if got, _ := a.get(t, generation); got.status != 200 {
		t.Errorf("after a change of the time that a call of a server may take: %d %s, want 200", got.status, got.reason())
	}
	if err := s.Reconfigure("", overlay+"\nprincipals: []"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key to be revoked", func() bool {
		got, _ := a.get(t, generation)
		return got.status == 401 && got.reason() == "LEASE_API_KEY_INVALID"
	})
	if got := must(t, s, c, request{path: "/leased/echo", headers: map[string]string{"x-api-key": "demo-key-a"}}); got.status != 401 {
		t.Errorf("the revoked key, without a lease: %d %s, want 401", got.status, got.reason())
	}
}

// faultByHeader is a filter behind the processor that answers in the upstream's place with the status that the request's
// header x-envoy-fault-abort-request names.
func faultByHeader(b *stack.Bootstrap) error {
	return b.AddFilter("envoy.filters.http.fault", &faultv3.HTTPFault{Abort: &faultv3.FaultAbort{
		ErrorType:  &faultv3.FaultAbort_HeaderAbort_{HeaderAbort: &faultv3.FaultAbort_HeaderAbort{}},
		Percentage: &typev3.FractionalPercent{Numerator: 100},
	}}, true)
}

// TestOnlyTheUpstreamPutsItsConnectionIntoCooldown: a 429 of the upstream does, and the lease moves at its next request; one
// of Envoy's own does not, for it says nothing about the account.
func TestOnlyTheUpstreamPutsItsConnectionIntoCooldown(t *testing.T) {
	t.Parallel()
	onLeaseStores(t, onlyTheUpstreamPutsIntoCooldown)
}

func onlyTheUpstreamPutsIntoCooldown(t *testing.T, st leaseStore) {
	s := start(t, stack.Options{Overlay: "leases: {" + st.setting() + "}", Envoy: []func(*stack.Bootstrap) error{faultByHeader}})
	a := session{s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("u", 43)}
	generation := a.acquire(t)
	connection := func() string {
		t.Helper()
		got, seen := a.get(t, generation)
		if got.status != 200 {
			t.Fatalf("a leased request: %d %s, want 200", got.status, got.reason())
		}
		return seen.Headers.Get("X-Omniroute-Connection")
	}
	leased := func(path string, more ...string) response {
		t.Helper()
		return must(t, s, a.c, request{path: "/leased" + path, headers: a.headers(generation, more...)})
	}
	first := connection()
	for range 3 {
		if got := leased("/echo", "x-envoy-fault-abort-request", "429"); got.status != 429 || got.reason() != "" {
			t.Fatalf("Envoy's own 429 = %d %q, want 429 and no reason of ours", got.status, got.reason())
		}
	}
	time.Sleep(200 * time.Millisecond) // a cooldown begins in the background
	if now := connection(); now != first {
		t.Errorf("after Envoy's own 429 the lease is on %s, want it to stay on %s", now, first)
	}
	if got := leased("/status/429?retry-after=60"); got.status != 429 {
		t.Fatalf("the upstream's 429 = %d", got.status)
	}
	eventually(t, "the lease to move off the connection whose upstream answered 429", func() bool { return connection() != first })
}

// TestLostLeaseCutsTheResponse: with onLost: cut the response of a lease that ended under it does not come to its end, and one
// that has not begun is refused; also where requests pass without the sidecar. With keep it runs to its end.
func TestLostLeaseCutsTheResponse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, onLost string
		failOpen     bool
		before       int // milliseconds until the first byte
	}{
		{"cut", "cut", false, 0},
		{"cut, failing open", "cut", true, 0},
		{"cut before the first byte", "cut", false, 15_000},
		{"cut before the first byte, failing open", "cut", true, 15_000},
		{"keep", "keep", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := stack.Options{Overlay: fmt.Sprintf("leases: {ttl: 2s, onLost: %s}", c.onLost)}
			if c.failOpen {
				o.Envoy = append(o.Envoy, (*stack.Bootstrap).FailOpen)
			}
			s := start(t, o)
			protocols(t, func(t *testing.T, hc *http.Client) {
				a := session{s, hc, "demo-key-a", "vlo_" + strings.Repeat("l", 43)}
				generation := a.acquire(t)
				began := time.Now()
				path := "/leased/drip?n=60&ms=100"
				if c.before > 0 {
					path = fmt.Sprintf("/leased/echo?ms=%d", c.before)
				}
				answer := make(chan response, 1)
				failed := make(chan error, 1)
				go func() {
					got, err := send(t.Context(), s, hc, request{path: path, headers: a.headers(generation)})
					answer <- got
					failed <- err
				}()
				eventually(t, "the response to be under way", func() bool { return s.Upstream.CountsOf(strings.Split(path, "?")[0]).Active == 1 })
				time.Sleep(300 * time.Millisecond) // its first bytes, where it has any by then, have passed
				if status, fields := a.do(t, `{"action":"release","generation":`+generation+`}`); status != 200 {
					t.Fatalf("release: %d %v", status, fields)
				}
				got, err := <-answer, <-failed
				took := time.Since(began)
				switch {
				case c.onLost == "keep":
					if err != nil || strings.Count(got.body, "data:") != 60 {
						t.Errorf("%d of 60 events (%v), want all", strings.Count(got.body, "data:"), err)
					}
				case c.before > 0:
					if err != nil || got.status != 409 || got.reason() != "LEASE_FENCE_STALE" || took > 10*time.Second {
						t.Errorf("%d %s after %v (%v), want 409 LEASE_FENCE_STALE long before the upstream answers", got.status, got.reason(), took, err)
					}
				default:
					if n := strings.Count(got.body, "data:"); err == nil || n >= 60 {
						t.Errorf("%d of 60 events, error %v; want a response that broke off", n, err)
					}
				}
			})
		})
	}
}

// TestRequestsGoWhereTheirModelIsServed: no request reaches a connection that does not serve its model, whether the body or the
// path names it, and whether it has a lease or not; a body that names it late never arrives whole.
func TestRequestsGoWhereTheirModelIsServed(t *testing.T) {
	t.Parallel()
	onLeaseStores(t, requestsGoWhereTheirModelIsServed)
}

func requestsGoWhereTheirModelIsServed(t *testing.T, st leaseStore) {
	s := start(t, stack.Options{Overlay: "clusters: {leased: {lease: {mode: managed}}}\n" +
		"leases: {pools: {leased: {connections: [{id: acct-1, cluster: acct-1, models: [m1]}, {id: acct-2, cluster: acct-2, models: [m2]}]}}, " + st.setting() + "}"})
	c := client(t, false)
	long := `{"messages":["` + strings.Repeat("x", 400<<10) + `"],`
	owner := "vlo_" + strings.Repeat("m", 43)
	acquire := func() map[string]string {
		t.Helper()
		a := session{s, c, "demo-key-a", owner}
		status, fields := a.do(t, `{"action":"acquire","model":"m1"}`)
		if status != 200 {
			t.Fatalf("acquire for m1: %d %v", status, fields)
		}
		return a.headers(fmt.Sprintf("%.0f", fields["generation"]))
	}
	nobody := func() map[string]string { return map[string]string{} }
	for _, test := range []struct {
		name       string
		who        func() map[string]string
		path, body string
		connection string // "": refused
	}{
		{"leased, m1", acquire, "/leased/v1/x", `{"model":"m1"}`, "acct-1"},
		{"leased, m1 behind the window", acquire, "/leased/v1/x", long + `"model":"m1"}`, "acct-1"},
		{"leased, m2", acquire, "/leased/v1/x", `{"model":"m2"}`, ""},
		{"leased, m2 behind the window", acquire, "/leased/v1/x", long + `"model":"m2"}`, ""},
		{"leased, m2 by Gemini's path", acquire, "/leased/v1beta/models/m2:streamGenerateContent", `{}`, ""},
		{"leased, m2 by Bedrock's path", acquire, "/leased/model/m2/converse-stream", `{}`, ""},
		{"leased, m2 by Azure's path", acquire, "/leased/openai/deployments/m2/chat/completions", `{"model":"m1"}`, ""},
		{"unmanaged, m2", nobody, "/leased/v1/x", `{"model":"m2"}`, "acct-2"},
		{"unmanaged, m2 by the path", nobody, "/leased/model/m2/converse-stream", `{}`, "acct-2"},
		{"unmanaged, m3", nobody, "/leased/v1/x", `{"model":"m3"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			headers := test.who()
			headers["content-type"] = "application/json"
			before := s.Upstream.CountsOf(test.path).Completed
			got := must(t, s, c, request{method: "POST", path: test.path, body: strings.NewReader(test.body), length: int64(len(test.body)), headers: headers})
			if test.connection == "" {
				if got.status != 409 || got.reason() != "LEASE_NO_ELIGIBLE_CONNECTION" || s.Upstream.CountsOf(test.path).Completed != before {
					t.Errorf("%d %s and %d complete requests at the upstream, want 409 LEASE_NO_ELIGIBLE_CONNECTION and %d",
						got.status, got.reason(), s.Upstream.CountsOf(test.path).Completed, before)
				}
				return
			}
			var e stack.Echo
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 200 || e.Headers.Get("X-Omniroute-Connection") != test.connection {
				t.Errorf("%d %s on %q, want 200 on %s", got.status, got.reason(), e.Headers.Get("X-Omniroute-Connection"), test.connection)
			}
		})
	}
}

// TestReadinessDoesNotFollowTheStore: a gateway starts while Redis is away, is ready, and serves everything that is not
// leased; the health document names the store. Nothing else changes when Redis comes, and goes again.
func TestReadinessDoesNotFollowTheStore(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) { // which is never away
		t.Parallel()
		g := gateway{start(t, stack.Options{}), nil}
		g.eventuallyIs(t, "ok")
		g.look(t, "embedded", g.client(t).acquire(t), 200)
	})
	for policy, without := range map[string]int{"deny": 503, "allow": 200} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			onLeaseServers(t, func(t *testing.T, server *stack.Redis) { readinessWithoutTheStore(t, server, policy, without) })
		})
	}
}

func readinessWithoutTheStore(t *testing.T, server *stack.Redis, policy string, without int) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server.Kill()
	g := gateway{start(t, stack.Options{Overlay: fmt.Sprintf("leases: {onStoreError: %s, store: {redis: {addrs: [%q]}}}", policy, server.Addr)}), nil}
	a := g.client(t)
	g.look(t, "started without the store", "1", without)
	g.eventuallyIs(t, "degraded")
	if err := server.Restart(ctx); err != nil {
		t.Fatalf("restart the store: %v", err)
	}
	g.eventuallyIs(t, "ok")
	generation := a.acquire(t)
	g.look(t, "with the store", generation, 200)
	server.Kill()
	eventually(t, "the sidecar to notice", func() bool {
		got, _ := a.get(t, generation)
		return got.status == without
	})
	g.look(t, "the store is gone again", generation, without)
	g.asks = func() { a.get(t, generation) }
	g.eventuallyIs(t, "degraded")
}

// gateway is a stack whose lease store may be away.
type gateway struct {
	s    *stack.Stack
	asks func() // the store, while its health is looked at
}

func (g gateway) client(t *testing.T) session {
	return session{g.s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("r", 43)}
}

// look checks what holds without the store.
func (g gateway) look(t *testing.T, when, generation string, leased int) {
	t.Helper()
	a := g.client(t)
	if got := must(t, g.s, a.c, request{path: "/echo"}); got.status != 200 {
		t.Errorf("%s: a request without a lease = %d %s, want 200", when, got.status, got.reason())
	}
	if got, _ := a.get(t, generation); got.status != leased {
		t.Errorf("%s: a leased request = %d %s, want %d", when, got.status, got.reason(), leased)
	}
	for _, probe := range []string{"/readyz", "/livez"} {
		if _, err := g.s.Sidecar.Get(t.Context(), probe); err != nil {
			t.Errorf("%s: %s: %v, want 200", when, probe, err)
		}
	}
}

// eventuallyIs waits until health names the store with a status.
func (g gateway) eventuallyIs(t *testing.T, status string) {
	t.Helper()
	eventually(t, "health to name the store as "+status, func() bool {
		if g.asks != nil {
			g.asks()
		}
		h := health(t, g.s)
		return h.Status == status && h.Leases.Status == status && h.Leases.Pools["leased"].Status == status
	})
}

// TestPinsTellNobodyWhoLeasesWhat: a connection that a request without a lease may not have gives the same answer whether it is
// leased, in cooldown or unknown.
func TestPinsTellNobodyWhoLeasesWhat(t *testing.T) {
	t.Parallel()
	o := operated(t, stack.Options{Overlay: "clusters: {leased: {lease: {mode: managed}}}"})
	s, c := o.s, client(t, false)
	pinned := func(connection string) response {
		return must(t, s, c, request{path: "/leased/echo", headers: map[string]string{"x-omniroute-connection": connection}})
	}
	if got := pinned("acct-1"); got.status != 200 {
		t.Errorf("a free connection: %d %s, want 200", got.status, got.reason())
	}
	session{s, c, "demo-key-a", "vlo_" + strings.Repeat("t", 43)}.acquire(t)
	o.says(t, "is in cooldown", "cooldown", "acct-2")
	answers := map[string]response{"leased": pinned("acct-1"), "in cooldown": pinned("acct-2"), "unknown": pinned("acct-9")}
	for what, got := range answers {
		if got.status != 409 || got.reason() != "LEASE_CONNECTION_MISMATCH" || got.body != answers["unknown"].body || got.header.Get("Retry-After") != "" {
			t.Errorf("%s: %d %s %q, Retry-After %q; want 409 LEASE_CONNECTION_MISMATCH as for an unknown one, and no Retry-After",
				what, got.status, got.reason(), got.body, got.header.Get("Retry-After"))
		}
	}
}
