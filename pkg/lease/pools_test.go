package lease_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// twoPools adds a second pool to settings.
func twoPools(s lease.Settings) lease.Settings {
	s.Pools = map[string]lease.PoolSettings{
		pool: s.Pools[pool], "zpool": {Connections: []lease.ConnectionSettings{{ID: "z-1"}}},
	}
	return s
}

// TestAcquireLooksIntoAllPools: one owner has one lease, wherever there is one.
func TestAcquireLooksIntoAllPools(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"acct-1"}, func(t *testing.T, s lease.Settings) {
		svc := newService(t, twoPools(s))
		in := func(name string) call {
			c := post("key-a", 2, acquireBody)
			c.query = "?pool=" + name
			return c
		}
		first := post("key-b", 1, acquireBody).to(svc)
		if first.Code != 200 {
			t.Fatalf("acquire: %d %s", first.Code, first.Body)
		}
		// the first pool is full, so the second is taken
		second := post("key-a", 2, acquireBody).to(svc)
		if second.Code != 200 {
			t.Fatalf("acquire while the first pool is full: %d %s, want the second pool's", second.Code, second.Body)
		}
		// all are full
		third := post("key-a", 3, acquireBody).to(svc)
		if third.Code != 429 || code(t, third) != string(lease.CapacityUnavailable) || decode(t, third)["eligibleCount"] != 2.0 {
			t.Errorf("acquire while all are full: %d %s, want 429 with both eligible", third.Code, third.Body)
		}
		// when the first pool has a place again, the owner keeps what it has and gets no second account
		if w := post("key-b", 1, `{"action":"release","generation":`+generation(t, first)+`}`).to(svc); w.Code != 200 {
			t.Fatal(w.Body)
		}
		if w := post("key-a", 2, acquireBody).to(svc); w.Code != 200 || generation(t, w) != generation(t, second) {
			t.Errorf("acquire again: %d %s, want generation %s", w.Code, w.Body, generation(t, second))
		}
		if w := in(pool).to(svc); w.Code != 409 || code(t, w) != string(lease.FenceStale) {
			t.Errorf("acquire in the other pool: %d %s, want 409 %s", w.Code, w.Body, lease.FenceStale)
		}
		if w := in("zpool").to(svc); w.Code != 200 || generation(t, w) != generation(t, second) {
			t.Errorf("acquire in its pool: %d %s, want generation %s", w.Code, w.Body, generation(t, second))
		}
		listing, err := svc.List(context.Background(), pool, 0)
		if err != nil || listing.Connections[0].State != "free" {
			t.Errorf("%+v %v, want the first pool free", listing, err)
		}
	})
}

// TestOwnerGetsNoTwoAccountsByAskingTwiceAtOnce: in two pools, through two sidecars.
func TestOwnerGetsNoTwoAccountsByAskingTwiceAtOnce(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *stack.Redis) {
		s := twoPools(onRedis(settings("acct-1"), server.Addr))
		s.AcquireRate = 0
		sidecars := []*lease.Service{newService(t, s), newService(t, s)}
		ctx := within(t, 2*patience)
		for round := range 30 {
			var both sync.WaitGroup
			for i, name := range []string{pool, "zpool"} {
				both.Go(func() {
					c := post("key-a", round, acquireBody)
					c.query = "?pool=" + name
					if w := c.to(sidecars[i]); w.Code != 200 && w.Code != 409 {
						t.Errorf("acquire in %s: %d %s", name, w.Code, w.Body)
					}
				})
			}
			both.Wait()
			held := 0
			for name, connection := range map[string]string{pool: "acct-1", "zpool": "z-1"} {
				if _, r := sidecars[0].EndLease(ctx, name, connection, lease.QuotaUnavailable); r == nil {
					held++
				}
			}
			if held > 1 {
				t.Fatalf("round %d: one owner has %d accounts", round, held)
			}
		}
	})
}

func TestAcquiresAreLimitedForEachPrincipal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2")
		s.AcquireRate = 5
		svc := newService(t, s)
		count := func(key string, owner int) (taken int) {
			for range 100 {
				w := post(key, owner, acquireBody).to(svc)
				switch {
				case w.Code == 200:
					taken++
				case w.Code != 429 || code(t, w) != string(lease.RateLimited) || w.Header().Get("Retry-After") != "1":
					t.Fatalf("%d %s Retry-After %q, want 429 %s after 1 s", w.Code, w.Body, w.Header().Get("Retry-After"), lease.RateLimited)
				}
			}
			return taken
		}
		if n := count("key-a", 1); n != 10 {
			t.Errorf("%d of 100 acquires at once were taken, want 10: twice the rate of 5", n)
		}
		if n := count("key-b", 2); n != 10 {
			t.Errorf("%d of another principal's were taken, want 10 too", n)
		}
		time.Sleep(time.Second)
		if n := count("key-a", 1); n != 5 {
			t.Errorf("%d were taken a second later, want 5", n)
		}
		// other actions are not limited
		g := generation(t, post("key-b", 2, acquireBody).to(svc))
		for range 100 {
			if w := post("key-b", 2, `{"action":"renew","generation":`+g+`}`).to(svc); w.Code != 200 {
				t.Fatalf("renew: %d %s", w.Code, w.Body)
			}
		}
	})
}
