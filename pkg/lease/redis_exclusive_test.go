package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// TestFiftyOwnersOneConnection: two sidecars, 50 acquires at once for one connection, 100 rounds, one winner each.
func TestFiftyOwnersOneConnection(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := onRedis(settings("acct-1"), server.Addr)
	sidecars := []*lease.Service{newService(t, s), newService(t, s)}
	ctx := within(t, 2*patience)
	last := int64(0)
	for round := range 100 {
		var won atomic.Int64
		var winner atomic.Pointer[lease.Lease]
		var who atomic.Int64
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				l, r := sidecars[n%2].Acquire(ctx, ask(t, sidecars[n%2], n, teamA, 0), "m")
				switch reason(r) {
				case "":
					won.Add(1)
					winner.Store(&l)
					who.Store(int64(n))
				case lease.CapacityUnavailable:
				default:
					t.Errorf("round %d, owner %d: %s", round, n, r.Reason)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of 50 owners have the one connection, want 1", round, won.Load())
		}
		l := winner.Load()
		if l.Generation <= last {
			t.Fatalf("round %d: generation %d after %d", round, l.Generation, last)
		}
		last = l.Generation
		if _, r := sidecars[round%2].Release(ctx, ask(t, sidecars[0], int(who.Load()), teamA, l.Generation), lease.OwnerExit); r != nil {
			t.Fatalf("round %d: release: %s", round, r.Reason)
		}
	}
}

// rivals are owners on two sidecars that fight for two connections while the store is disturbed, and the referee.
//
// The referee holds them to what is promised for each connection. Once a fencing token was seen to be valid for a connection,
// no smaller one is valid for it in a check that begins later. Every new generation is larger than all that were handed out
// before its acquire began. And of two exchanges of different owners on a connection one is told that its lease is lost.
type rivals struct {
	t        *testing.T
	sidecars []*lease.Service
	top      map[string]*atomic.Int64 // highest token seen valid, by connection
	highest  atomic.Int64             // highest generation handed out
	acquired atomic.Int64
	checked  atomic.Int64
	refused  atomic.Int64
	moved    atomic.Int64
	met      atomic.Int64 // exchanges that met another owner's

	flying  sync.WaitGroup
	mu      sync.Mutex
	flights map[*exchange]struct{}
}

// exchange is in flight on a connection.
type exchange struct {
	owner        int
	connection   string
	token        int64
	told, landed chan struct{}
}

func newRivals(t *testing.T, sidecars ...*lease.Service) *rivals {
	return &rivals{t: t, sidecars: sidecars, top: map[string]*atomic.Int64{"acct-1": {}, "acct-2": {}}, flights: map[*exchange]struct{}{}}
}

// longFlight is longer than anybody may stay untold, by far.
const longFlight = 15 * time.Second

// fly keeps an exchange in flight for a while, now and then for very long, and sees that of it and those of other owners on
// its connection one is told.
func (r *rivals) fly(ctx context.Context, svc *lease.Service, n int, f lease.Fence, lasts time.Duration) {
	x := &exchange{owner: n, connection: f.Connection, token: f.Token, told: make(chan struct{}), landed: make(chan struct{})}
	hold := svc.Keep(f, func(lease.EndReason) { close(x.told) })
	r.mu.Lock()
	var others []*exchange
	for y := range r.flights {
		if y.connection == x.connection && y.owner != n {
			others = append(others, y)
		}
	}
	r.flights[x] = struct{}{}
	r.mu.Unlock()
	var meetings sync.WaitGroup
	for _, y := range others {
		r.met.Add(1)
		meetings.Go(func() {
			select {
			case <-x.told:
			case <-y.told:
			case <-x.landed:
			case <-y.landed:
			case <-ctx.Done():
			case <-time.After(longFlight * 2 / 3):
				r.t.Errorf("owners %d (token %d) and %d (token %d) are in flight on %s, and nobody was told", n, x.token, y.owner, y.token, x.connection)
			}
		})
	}
	select {
	case <-x.told:
	case <-ctx.Done():
	case <-time.After(lasts):
	}
	r.mu.Lock()
	delete(r.flights, x)
	r.mu.Unlock()
	close(x.landed)
	hold.Stop()
	meetings.Wait()
}

func raise(to *atomic.Int64, n int64) {
	for {
		old := to.Load()
		if old >= n || to.CompareAndSwap(old, n) {
			return
		}
	}
}

// fight lets n owners acquire, check and release until ctx ends.
func (r *rivals) fight(ctx context.Context, n int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				r.once(ctx, i, random)
				time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	r.flying.Wait()
}

func (r *rivals) once(fight context.Context, n int, random *rand.Rand) {
	ctx := context.Background()
	svc := r.sidecars[random.IntN(len(r.sidecars))]
	before := r.highest.Load()
	l, refusal := svc.Acquire(ctx, ask(r.t, svc, n, teamA, 0), "m")
	if refusal != nil {
		r.refused.Add(1)
		return
	}
	r.acquired.Add(1)
	if l.Outcome == "ACQUIRED" && l.Generation <= before {
		r.t.Errorf("owner %d acquired generation %d, %d was handed out before", n, l.Generation, before)
	}
	raise(&r.highest, l.Generation)
	for range random.IntN(6) {
		svc = r.sidecars[random.IntN(len(r.sidecars))]
		top := map[string]int64{}
		for c, g := range r.top {
			top[c] = g.Load()
		}
		f, refusal := svc.Check(ctx, fence(r.t, svc, n, teamA, l.Generation))
		if refusal != nil {
			continue
		}
		r.checked.Add(1)
		if f.Token < top[f.Connection] {
			r.t.Errorf("owner %d: token %d is valid for %s after %d was: two live owners", n, f.Token, f.Connection, top[f.Connection])
		}
		raise(r.top[f.Connection], f.Token)
		if f.Moved {
			r.moved.Add(1)
		}
		switch random.IntN(8) {
		case 0:
			_ = svc.SetCooldown(ctx, pool, f.Connection, 30*time.Millisecond)
		case 1, 2:
			lasts := time.Duration(random.IntN(40)) * time.Millisecond
			if random.IntN(20) == 0 {
				lasts = longFlight
			}
			through := svc
			r.flying.Go(func() { r.fly(fight, through, n, f, lasts) })
		}
	}
	if random.IntN(10) > 0 { // some leave their lease to expire
		_, _ = svc.Release(ctx, ask(r.t, svc, n, teamA, l.Generation), lease.OwnerExit) // may be lost, then it expires
	}
}

// report fails when too little happened for the test to mean anything.
func (r *rivals) report(minimum int64) {
	r.t.Logf("%d acquired, %d checks valid, %d moves, %d refused, %d exchanges met another owner's",
		r.acquired.Load(), r.checked.Load(), r.moved.Load(), r.refused.Load(), r.met.Load())
	if r.acquired.Load() < minimum || r.checked.Load() < minimum {
		r.t.Errorf("%d leases and %d valid checks, want at least %d", r.acquired.Load(), r.checked.Load(), minimum)
	}
}

// disturbed makes two sidecars with short leases and calls, each behind a relay.
func disturbed(t *testing.T, target string) ([]*lease.Service, []*stack.Relay) {
	t.Helper()
	var sidecars []*lease.Service
	var relays []*stack.Relay
	for range 2 {
		relay := startRelay(t, target)
		s := onRedis(settings("acct-1", "acct-2"), relay.Addr)
		s.Store.Redis.CallTimeout = 150 * time.Millisecond
		svc := newService(t, s)
		svc.SetTTL(250 * time.Millisecond)
		sidecars, relays = append(sidecars, svc), append(relays, relay)
	}
	return sidecars, relays
}

func TestNeverTwoOwnersWhateverHappensToTheStore(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(ctx context.Context, server *stack.Redis, relays []*stack.Relay) error{
		"scripts are flushed": func(ctx context.Context, server *stack.Redis, _ []*stack.Relay) error {
			_, err := server.Do(ctx, "SCRIPT", "FLUSH")
			return err
		},
		"everything is flushed": func(ctx context.Context, server *stack.Redis, _ []*stack.Relay) error {
			_, err := server.Do(ctx, "FLUSHALL")
			return err
		},
		"replies are dropped": func(_ context.Context, _ *stack.Redis, relays []*stack.Relay) error {
			relays[0].DropReplies(true)
			time.Sleep(100 * time.Millisecond)
			relays[0].DropReplies(false)
			relays[0].Cut()
			return nil
		},
		"replies are delayed by 2 s": func(_ context.Context, _ *stack.Redis, relays []*stack.Relay) error {
			relays[0].DelayReplies(2 * time.Second)
			time.Sleep(200 * time.Millisecond)
			relays[0].DelayReplies(0)
			return nil
		},
		"requests arrive late": func(_ context.Context, _ *stack.Redis, relays []*stack.Relay) error {
			relays[1].DelayRequests(400 * time.Millisecond)
			time.Sleep(200 * time.Millisecond)
			relays[1].DelayRequests(0)
			return nil
		},
		"connections are cut": func(_ context.Context, _ *stack.Redis, relays []*stack.Relay) error {
			relays[0].Cut()
			relays[1].Cut()
			return nil
		},
		"the server is killed": func(ctx context.Context, server *stack.Redis, _ []*stack.Relay) error {
			server.Kill()
			return server.Restart(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onServers(t, func(t *testing.T, server *stack.Redis) { disturbedFight(t, server, disturb) })
		})
	}
}

func disturbedFight(t *testing.T, server *stack.Redis, disturb func(context.Context, *stack.Redis, []*stack.Relay) error) {
	sidecars, relays := disturbed(t, server.Addr)
	r := newRivals(t, sidecars...)
	ctx, cancel := context.WithTimeout(context.Background(), 8*patience)
	defer cancel()
	var fighting sync.WaitGroup
	fighting.Go(func() { r.fight(ctx, 8) })
	for range 6 {
		acquired, checked := r.acquired.Load(), r.checked.Load()
		if err := disturb(ctx, server, relays); err != nil {
			t.Errorf("disturb: %v", err)
		}
		eventually(t, patience, "leases after the disturbance", func() bool {
			return r.acquired.Load() >= acquired+30 && r.checked.Load() >= checked+30
		})
		time.Sleep(300 * time.Millisecond) // and some of peace
	}
	cancel()
	fighting.Wait()
	r.report(180)
	noImmortals(t, server)
}

// noImmortals fails when a key has no time to live.
func noImmortals(t *testing.T, server *stack.Redis) {
	t.Helper()
	ctx := within(t, patience)
	keys := 0
	scan := server.Client().Scan(ctx, 0, "*", 1000).Iterator()
	for scan.Next(ctx) {
		keys++
		if ttl, err := server.Client().PTTL(ctx, scan.Val()).Result(); err != nil || ttl == -1 {
			t.Errorf("key %s has no time to live (%v, %v)", scan.Val(), ttl, err)
		}
	}
	if err := scan.Err(); err != nil || keys == 0 {
		t.Errorf("%d keys were looked at (%v), want some", keys, err)
	}
}

func TestNeverTwoOwnersOverResharding(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*patience)
	cluster, err := stack.StartRedisCluster(ctx, 3, stack.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	s := onRedis(settings("acct-1", "acct-2"), cluster.Nodes[0].Addr)
	s.Store.Redis.Kind = "cluster"
	s.Store.Redis.CallTimeout = 300 * time.Millisecond
	sidecars := []*lease.Service{newService(t, s), newService(t, s)}
	for _, svc := range sidecars {
		svc.SetTTL(500 * time.Millisecond)
	}
	key, _ := sidecars[0].StoreKeys(pool)
	slot, err := cluster.Slot(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	r := newRivals(t, sidecars...)
	fight, stop := context.WithCancel(ctx)
	defer stop()
	var fighting sync.WaitGroup
	fighting.Go(func() { r.fight(fight, 8) })
	for move := range 8 {
		from, err := cluster.Owner(ctx, slot)
		if err != nil {
			t.Fatal(err)
		}
		to := cluster.Nodes[move%3]
		if to == from {
			to = cluster.Nodes[(move+1)%3]
		}
		acquired, checked := r.acquired.Load(), r.checked.Load()
		if err := cluster.MoveSlot(ctx, slot, from, to, func() { time.Sleep(3 * time.Millisecond) }); err != nil {
			t.Fatal(err)
		}
		eventually(t, patience, "leases after the slot has moved", func() bool {
			return r.acquired.Load() >= acquired+20 && r.checked.Load() >= checked+20
		})
	}
	stop()
	fighting.Wait()
	r.report(160)
}

func TestNeverTwoOwnersOverAFailover(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*patience)
	group, err := stack.StartSentinel(ctx, 1, 3, stack.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(group.Stop)
	s := settings("acct-1", "acct-2")
	s.Store.Redis.Kind, s.Store.Redis.MasterName, s.Store.Redis.Addrs = "sentinel", group.Name, group.Addrs()
	s.Store.Redis.CallTimeout, s.Store.Redis.DialTimeout = 300*time.Millisecond, time.Second
	sidecars := []*lease.Service{newService(t, s), newService(t, s)}
	for _, svc := range sidecars {
		svc.SetTTL(500 * time.Millisecond)
	}
	r := newRivals(t, sidecars...)
	fight, stop := context.WithCancel(ctx)
	defer stop()
	var fighting sync.WaitGroup
	fighting.Go(func() { r.fight(fight, 6) })
	eventually(t, patience, "leases before the failover", func() bool { return r.acquired.Load() > 50 })
	// when the primary dies
	before, err := group.Primary(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before.Kill()
	died := time.Now()
	eventually(t, 2*patience, "another primary", func() bool {
		p, err := group.Primary(ctx)
		return err == nil && p != before
	})
	promoted := time.Now()
	// then leases work again soon, on an idle machine within 5 s
	count := r.checked.Load()
	eventually(t, patience, "valid checks after the failover", func() bool { return r.checked.Load() > count+50 })
	t.Logf("promoted %v after the death, leases %v later", promoted.Sub(died), time.Since(promoted))
	stop()
	fighting.Wait()
	r.report(50)
}

// TestGenerationsOnlyGrow counts a thousand leases over a flush and a restart without persistence.
func TestGenerationsOnlyGrow(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, onRedis(settings("acct-1"), server.Addr))
	ctx := within(t, 2*patience)
	last := int64(0)
	for i := range 1000 {
		switch i {
		case 500:
			if _, err := server.Do(ctx, "FLUSHALL"); err != nil {
				t.Fatal(err)
			}
		case 700:
			server.Kill()
			if err := server.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		}
		var l lease.Lease
		eventually(t, patience, fmt.Sprintf("acquire %d", i), func() bool { // the pool's connections may just have died
			var r *lease.Refusal
			l, r = svc.Acquire(ctx, ask(t, svc, i%3, teamA, 0), "m")
			return r == nil
		})
		if l.Generation <= last {
			t.Fatalf("lease %d has generation %d, the one before had %d", i, l.Generation, last)
		}
		last = l.Generation
		if _, r := svc.Release(ctx, ask(t, svc, i%3, teamA, l.Generation), lease.OwnerExit); r != nil {
			t.Fatalf("release %d: %s", i, r.Reason)
		}
	}
}
