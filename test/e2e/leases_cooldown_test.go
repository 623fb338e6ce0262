package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestWhoCanPutAnAccountIntoCooldown: a 429 of the upstream does whoever asked; what the upstream says about authentication does
// where the gateway authenticates, and only for a request that has a lease; nobody else's credentials say anything about the
// account.
func TestWhoCanPutAnAccountIntoCooldown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gatewayAuth, leased bool
		status              int
		cooldown            bool
	}{
		{false, true, 429, true}, {false, false, 429, true}, {true, false, 429, true},
		{false, true, 401, false}, {false, true, 402, false}, {false, true, 403, false},
		{false, false, 401, false}, {false, false, 403, false},
		{true, true, 401, true}, {true, true, 402, true}, {true, true, 403, true},
		{true, false, 401, false}, {true, false, 402, false}, {true, false, 403, false},
		{true, true, 400, false}, {true, true, 500, false}, {true, true, 503, false},
	} {
		t.Run(fmt.Sprintf("gatewayAuth %v, leased %v, %d", c.gatewayAuth, c.leased, c.status), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: fmt.Sprintf("clusters: {leased: {lease: {mode: managed}}}\nleases: {pools: {leased: {gatewayAuth: %v}}}", c.gatewayAuth)})
			headers := map[string]string{"authorization": "Basic cnViYmlzaA=="}
			if c.leased {
				a := session{s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("w", 43)}
				headers = map[string]string{"authorization": "Bearer " + a.key, "x-omniroute-lease-owner": a.owner, "x-omniroute-lease-generation": a.acquire(t)}
			}
			got := must(t, s, client(t, false), request{path: fmt.Sprintf("/leased/status/%d?retry-after=60", c.status), headers: headers})
			if got.status != c.status || got.reason() != "" {
				t.Fatalf("the upstream's %d = %d %s", c.status, got.status, got.reason())
			}
			cooling := func() bool {
				return connectionOf(t, s, "acct-1").Cooldown != nil || connectionOf(t, s, "acct-2").Cooldown != nil
			}
			if c.cooldown {
				eventually(t, "a cooldown", cooling)
				return
			}
			time.Sleep(300 * time.Millisecond) // it would begin in the background
			if cooling() {
				t.Error("a connection is in cooldown, want none")
			}
		})
	}
}

// TestAnExchangeOnAConnectionThatItsLeaseHasLeft is lost: with onLost: cut it is cut, also where Envoy fails open, before somebody
// else's request is on that connection. The fencing tokens that a connection's upstream sees only grow.
func TestAnExchangeOnAConnectionThatItsLeaseHasLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, onLost string
		failOpen     bool
	}{{"cut", "cut", false}, {"cut, failing open", "cut", true}, {"keep", "keep", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			redis, err := stack.StartRedis(t.Context(), stack.RedisOptions{})
			if err != nil {
				t.Fatalf("start Redis: %v", err)
			}
			t.Cleanup(redis.Stop)
			o := operator{token: tokenFile(t, strings.Repeat("operator", 4))}
			options := stack.Options{
				Overlay: fmt.Sprintf("leases: {onLost: %s, store: {redis: {addrs: [%q], callTimeout: 1s}}}", c.onLost, redis.Addr),
				Environ: []string{"HEADGATE_LISTEN_ADMIN_TOKEN_FILE=" + o.token},
			}
			if c.failOpen {
				options.Envoy = append(options.Envoy, (*stack.Bootstrap).FailOpen)
			}
			s := start(t, options)
			o.s = s
			a := session{s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("p", 43)}
			b := session{s, client(t, false), "demo-key-b", "vlo_" + strings.Repeat("q", 43)}
			generation := a.acquire(t)
			first, tokenOfA := boundTo(t, a, generation)
			type end struct {
				events int
				err    error
			}
			ended := make(chan end, 1)
			go func() {
				r, err := send(t.Context(), s, client(t, false), request{path: "/leased/drip?n=80&ms=100", headers: map[string]string{
					"authorization": "Bearer " + a.key, "x-omniroute-lease-owner": a.owner, "x-omniroute-lease-generation": generation}})
				ended <- end{strings.Count(r.body, "data:"), err}
			}()
			eventually(t, "the response under way", func() bool { return s.Upstream.CountsOf("/leased/drip").Active == 1 })
			time.Sleep(300 * time.Millisecond)

			o.says(t, "is in cooldown", "cooldown", first)
			second, tokenMoved := boundTo(t, a, generation)
			if second == first || tokenMoved <= tokenOfA {
				t.Errorf("after the cooldown the lease is on %s with token %d, want another connection than %s and a token above %d", second, tokenMoved, first, tokenOfA)
			}
			if c.onLost == "cut" {
				if e := <-ended; e.err == nil || e.events >= 80 {
					t.Errorf("%d of 80 events and %v, want a response that broke off when its lease left %s", e.events, e.err, first)
				}
			}
			o.says(t, "ended the cooldown", "wake", first)
			connection, tokenOfB := boundTo(t, b, b.acquire(t))
			if connection != first || tokenOfB <= tokenMoved {
				t.Errorf("the next owner is on %s with token %d, want %s and a token above %d", connection, tokenOfB, first, tokenMoved)
			}
			if c.onLost == "keep" {
				if e := <-ended; e.err != nil || e.events != 80 {
					t.Errorf("%d of 80 events and %v, want all", e.events, e.err)
				}
			}
			metrics, err := s.Sidecar.Get(t.Context(), "/metrics")
			if err != nil || !strings.Contains(metrics, `headgate_lease_lost_total{pool="leased",reason="MOVED"} 1`) {
				t.Errorf("no lost exchange with reason MOVED in the metrics (%v):\n%s", err, grep(metrics, "lease_lost"))
			}
		})
	}
}

// boundTo is the connection that a leased request reaches, and the fencing token that its upstream gets.
func boundTo(t *testing.T, a session, generation string) (connection string, token int64) {
	t.Helper()
	got, seen := a.get(t, generation)
	token, err := strconv.ParseInt(seen.Headers.Get("X-Omniroute-Lease-Generation"), 10, 64)
	if got.status != http.StatusOK || err != nil {
		t.Fatalf("a leased request: %d %s, token %v; want 200 with one", got.status, got.reason(), err)
	}
	return seen.Headers.Get("X-Omniroute-Connection"), token
}

// grep is the lines that contain a text.
func grep(text, what string) string {
	var found []string
	for _, line := range lines(text) {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}
