package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// TestDrainAndLeases: when a sidecar ends, the leases of responses that stream on are renewed to their full time to live, once;
// with onLost: cut their exchanges stay, so that renewals go on and a lease that is lost cuts, until the grace ends.
func TestDrainAndLeases(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, leaseStore){"keep": drainKeeps, "cut": drainCuts, "cut, lost": drainCutsWhatIsLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onLeaseStores(t, test)
		})
	}
}

// streamUntilSIGTERM begins a leased response of so many events, and the end of its sidecar.
func streamUntilSIGTERM(t *testing.T, overlay string, events int, e expectation) (a session, generation string, before lease.LeaseListing, ended <-chan streamed) {
	t.Helper()
	a = session{start(t, stack.Options{Overlay: overlay}, e), client(t, false), "demo-key-a", "vlo_" + strings.Repeat("d", 43)}
	generation = a.acquire(t)
	ended = a.stream(t, generation, events)
	before = leaseOn(t, a.s)
	if err := a.s.Sidecar.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return a, generation, before, ended
}

func drainKeeps(t *testing.T, st leaseStore) {
	const events = 80
	overlay := fmt.Sprintf("leases: {ttl: 10m, %s}\nshutdown: {drain: 1s, grace: 20s}", st.lasting(t).setting())
	a, _, before, ended := streamUntilSIGTERM(t, overlay, events, expectation{})
	ends(t, a.s, 8*time.Second, "an end by itself: the exchange was let go")
	restart(t, a.s)
	if after := leaseOn(t, a.s); !after.RenewedAt.After(before.RenewedAt) {
		t.Errorf("renewed at %v before the signal and at %v after the end, want once more: the response streams on", before.RenewedAt, after.RenewedAt)
	}
	if e := <-ended; e.events != events {
		t.Errorf("%d of %d events (%v), want all: clients must notice nothing", e.events, events, e.err)
	}
}

func drainCuts(t *testing.T, st leaseStore) {
	const events = 50 // longer than the time to live
	overlay := fmt.Sprintf("leases: {ttl: 2s, onLost: cut, %s}\nshutdown: {drain: 0s, grace: 20s}", st.setting())
	a, _, _, ended := streamUntilSIGTERM(t, overlay, events, expectation{gone: true})
	if e := <-ended; e.events != events {
		t.Errorf("%d of %d events (%v), want all: its lease is renewed during the drain", e.events, events, e.err)
	}
	ends(t, a.s, 10*time.Second, "an end once the exchange is over")
}

func drainCutsWhatIsLost(t *testing.T, st leaseStore) {
	const events = 120
	overlay := fmt.Sprintf("leases: {ttl: 2s, onLost: cut, %s}\nshutdown: {drain: 0s, grace: 20s}", st.setting())
	a, generation, _, ended := streamUntilSIGTERM(t, overlay, events, expectation{gone: true})
	if status, fields := a.do(t, `{"action":"release","generation":`+generation+`}`); status != 200 {
		t.Fatalf("release during the drain: %d %v", status, fields)
	}
	if e := <-ended; e.events >= events {
		t.Errorf("%d of %d events, want a response that broke off", e.events, events)
	}
	ends(t, a.s, 10*time.Second, "an end once the exchange is over")
}

// leaseOn is the one live lease, as the admin port lists it.
func leaseOn(t *testing.T, s *stack.Stack) lease.LeaseListing {
	t.Helper()
	for _, p := range listing(t, s) {
		for _, c := range p.Connections {
			if c.Lease != nil {
				return *c.Lease
			}
		}
	}
	t.Fatal("there is no lease")
	return lease.LeaseListing{}
}

// listing is what the admin port lists.
func listing(t *testing.T, s *stack.Stack) []lease.PoolListing {
	t.Helper()
	text, err := s.Sidecar.Get(t.Context(), "/v1/session-leases")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Pools []lease.PoolListing }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return all.Pools
}
