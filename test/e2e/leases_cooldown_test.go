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
	for _, gatewayAuth := range []bool{false, true} {
		t.Run(fmt.Sprintf("gatewayAuth %v", gatewayAuth), func(t *testing.T) {
			t.Parallel()
			onLeaseStores(t, func(t *testing.T, st leaseStore) { whoCanPutIntoCooldown(t, st, gatewayAuth) })
		})
	}
}

func whoCanPutIntoCooldown(t *testing.T, st leaseStore, gatewayAuth bool) {
	o := operated(t, stack.Options{Overlay: fmt.Sprintf("clusters: {leased: {lease: {mode: managed}}}\nleases: {pools: {leased: {gatewayAuth: %v}}, %s}", gatewayAuth, st.setting())})
	a := session{o.s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("w", 43)}
	cooling := func() (connections []string) {
		for _, id := range []string{"acct-1", "acct-2"} {
			if connectionOf(t, o.s, id).Cooldown != nil {
				connections = append(connections, id)
			}
		}
		return connections
	}
	for _, c := range []struct {
		leased   bool
		status   int
		cooldown bool
	}{
		{true, 429, true}, {false, 429, true},
		{true, 401, gatewayAuth}, {true, 402, gatewayAuth}, {true, 403, gatewayAuth},
		{false, 401, false}, {false, 402, false}, {false, 403, false},
		{true, 400, false}, {true, 500, false}, {true, 503, false},
	} {
		headers := map[string]string{"authorization": "Basic cnViYmlzaA=="}
		if c.leased {
			headers = a.headers(a.acquire(t))
		}
		got := must(t, o.s, a.c, request{path: fmt.Sprintf("/leased/status/%d?retry-after=60", c.status), headers: headers})
		if got.status != c.status || got.reason() != "" {
			t.Fatalf("leased %v: the upstream's %d = %d %s", c.leased, c.status, got.status, got.reason())
		}
		if !c.cooldown {
			time.Sleep(300 * time.Millisecond) // it would begin in the background
			if got := cooling(); len(got) > 0 {
				t.Errorf("leased %v, %d: %v are in cooldown, want none", c.leased, c.status, got)
			}
			continue
		}
		eventually(t, "a cooldown", func() bool { return len(cooling()) > 0 })
		for _, id := range cooling() {
			o.says(t, "ended the cooldown", "wake", id)
		}
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
			onLeaseStores(t, func(t *testing.T, st leaseStore) { leaseLeavesItsConnection(t, st, c.onLost, c.failOpen) })
		})
	}
}

func leaseLeavesItsConnection(t *testing.T, st leaseStore, onLost string, failOpen bool) {
	options := stack.Options{Overlay: fmt.Sprintf("leases: {onLost: %s, %s}", onLost, st.setting())}
	if failOpen {
		options.Envoy = append(options.Envoy, (*stack.Bootstrap).FailOpen)
	}
	o := operated(t, options)
	a := session{o.s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("p", 43)}
	b := session{o.s, client(t, false), "demo-key-b", "vlo_" + strings.Repeat("q", 43)}
	generation := a.acquire(t)
	first, tokenOfA := boundTo(t, a, generation)
	const events = 60
	ended := a.stream(t, generation, events)

	o.says(t, "is in cooldown", "cooldown", first)
	second, tokenMoved := boundTo(t, a, generation)
	if second == first || tokenMoved <= tokenOfA {
		t.Errorf("after the cooldown the lease is on %s with token %d, want another connection than %s and a token above %d", second, tokenMoved, first, tokenOfA)
	}
	if onLost == "cut" {
		if e := <-ended; e.err == nil || e.events >= events {
			t.Errorf("%d of %d events and %v, want a response that broke off when its lease left %s", e.events, events, e.err, first)
		}
	}
	o.says(t, "ended the cooldown", "wake", first)
	connection, tokenOfB := boundTo(t, b, b.acquire(t))
	if connection != first || tokenOfB <= tokenMoved {
		t.Errorf("the next owner is on %s with token %d, want %s and a token above %d", connection, tokenOfB, first, tokenMoved)
	}
	if onLost == "keep" {
		if e := <-ended; e.err != nil || e.events != events {
			t.Errorf("%d of %d events and %v, want all", e.events, events, e.err)
		}
	}
	metrics, err := o.s.Sidecar.Get(t.Context(), "/metrics")
	if err != nil || !strings.Contains(metrics, `headgate_lease_lost_total{pool="leased",reason="MOVED"} 1`) {
		t.Errorf("no lost exchange with reason MOVED in the metrics (%v):\n%s", err, grep(metrics, "lease_lost"))
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
