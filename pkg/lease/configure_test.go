package lease_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

func TestSettingsAreValidatedTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*lease.Settings)
		want   []string
	}{
		"the defaults": {func(*lease.Settings) {}, nil},
		"a connection in two pools": {func(s *lease.Settings) {
			s.Pools["other"] = s.Pools[pool]
		}, []string{`leases.pools.other.connections[0].id: "acct-1" is also in pool chat`}},
		"several faults": {func(s *lease.Settings) {
			s.OnLost = "maybe"
			s.Pools["bad name"] = lease.PoolSettings{}
			s.Pools[pool] = lease.PoolSettings{Connections: []lease.ConnectionSettings{{ID: ""}, {ID: "a b"}, {ID: "ok", Models: []string{""}}}}
		}, []string{
			"leases.onLost:", "leases.pools.bad name:", "leases.pools.bad name.connections:", "leases.pools.chat.connections[0].id:",
			"leases.pools.chat.connections[1].id:", "leases.pools.chat.connections[2].models[0]:",
		}},
		"no store":      {func(s *lease.Settings) { s.Store.Embedded = false }, []string{"leases.store:"}},
		"a bad address": {func(s *lease.Settings) { s.Store.Redis.Addrs = []string{"redis"} }, []string{"leases.store.redis.addrs[0]:"}},
		"two single nodes": {func(s *lease.Settings) {
			s.Store.Redis.Addrs = []string{"a:1", "b:1"}
		}, []string{"leases.store.redis.addrs:"}},
		"sentinel without a name": {func(s *lease.Settings) {
			s.Store.Redis.Kind, s.Store.Redis.Addrs = "sentinel", []string{"a:1"}
		}, []string{"leases.store.redis.masterName:"}},
		"a database in a cluster": {func(s *lease.Settings) {
			s.Store.Redis.Kind, s.Store.Redis.Addrs, s.Store.Redis.DB = "cluster", []string{"a:1"}, 1
		}, []string{"leases.store.redis.db:"}},
		"a hash tag of its own": {func(s *lease.Settings) {
			s.Store.Redis.Addrs, s.Store.Redis.KeyPrefix = []string{"a:1"}, "x{y}"
		}, []string{"leases.store.redis.keyPrefix:"}},
		"half a key pair and a user without password": {func(s *lease.Settings) {
			s.Store.Redis.Addrs, s.Store.Redis.TLS.CertFile, s.Store.Redis.Username = []string{"a:1"}, "x", "u"
		}, []string{"leases.store.redis.tls:", "leases.store.redis.passwordFile:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settings("acct-1")
			c.change(&s)
			err := s.Validate()
			if len(c.want) == 0 && err != nil {
				t.Errorf("Validate: %v", err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Validate: %v\nwant %q in it", err, want)
				}
			}
		})
	}
}

func TestPrincipalsAreValidated(t *testing.T) {
	t.Parallel()
	s := settings("acct-1")
	list := []lease.Principal{
		{ID: ""}, {ID: "a", KeySHA256: "demo-key"}, {ID: "a", KeySHA256: strings.ToUpper(lease.HashKey("k"))},
		{ID: "b", KeySHA256: lease.HashKey("k"), Connections: []string{"acct-1", "acct-9"}}, {ID: "c", KeySHA256: lease.HashKey("k")},
		{ID: "managed without connections", Scopes: []string{"lease:exclusive"}},
	}
	err := lease.ValidatePrincipals(list, s.Pools)
	for _, want := range []string{
		"principals[0].id:", "principals[1].keySHA256:", "principals[2].id:", "principals[2].keySHA256:", "principals[3].connections[1]:", "principals[4].keySHA256:",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ValidatePrincipals: %v\nwant %q in it", err, want)
		}
	}
	if err != nil && (strings.Contains(err.Error(), "demo-key") || strings.Contains(err.Error(), "principals[5]")) {
		t.Errorf("ValidatePrincipals shows a key or refuses a managed principal without connections: %v", err)
	}
}

func TestClusterSettingsNeedAPool(t *testing.T) {
	t.Parallel()
	pools := settings("acct-1").Pools
	for c, want := range map[lease.ClusterSettings]string{
		{Mode: lease.ModeOff}:                    "",
		{Mode: lease.ModeRequired, Pool: pool}:   "",
		{Mode: lease.ModeManaged, Pool: "x"}:     "clusters.chat.lease.pool:",
		{Mode: "sometimes", Pool: pool}:          "clusters.chat.lease.mode:",
		{Mode: lease.ModeRequired}:               "clusters.chat.lease.pool:",
		{Mode: lease.ModeOff, Pool: "not there"}: "",
	} {
		err := c.Validate("clusters.chat.lease", pools)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestKeysFindTheirPrincipals(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	if id, ok := svc.IdentifyKey("key-a"); !ok || id.Principal != teamA || !id.Managed || len(id.Connections) != 1 {
		t.Errorf("key-a: %+v %v", id, ok)
	}
	for _, key := range []string{"", "key-c", lease.HashKey("key-a")} {
		if id, ok := svc.IdentifyKey(key); ok {
			t.Errorf("key %q is %+v", key, id)
		}
	}
	if id := svc.Identify("somebody"); id.Managed || id.Principal != "somebody" {
		t.Errorf("an identifier that is not configured: %+v, want unmanaged", id)
	}
	for headers, want := range map[[2]string]string{
		{"Bearer k1", "k2"}: "k1", {"bearer  k1 ", ""}: "k1", {"", " k2 "}: "k2", {"Basic k1", ""}: "", {"Bearer ", "k2"}: "k2", {"Bearer", ""}: "",
	} {
		if got := lease.APIKey(headers[0], headers[1]); got != want {
			t.Errorf("APIKey(%q, %q) = %q, want %q", headers[0], headers[1], got, want)
		}
	}
}

func TestLeasesSurviveAReload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2")
		svc, ctx := newService(t, s), context.Background()
		l := acquire(t, svc, 1, teamA)
		other := acquire(t, svc, 2, teamB)
		// when a broken configuration comes, nothing changes
		bad := s
		bad.OnStoreError = "perhaps"
		if err := svc.Configure(bad, managers(s)); err == nil {
			t.Error("a broken configuration was taken")
		}
		_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check after a broken reload", r, "")
		// when a principal is taken out, its lease ends and the other's does not
		s.TTL = time.Minute
		if err := svc.Configure(s, managers(s)[:1]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "the one that stays", r, "")
		listing, err := svc.List(ctx, pool, 1)
		if err != nil || listing.Connections[1].State != "free" || listing.Events[0].Reason != lease.ManagedKeyRevoked {
			t.Errorf("after team-b was removed: %+v %v, want its lease %d invalidated as MANAGED_KEY_REVOKED", listing, err, other.Generation)
		}
		// when the bound connection is taken out, the lease moves
		s.Pools = settings("acct-2").Pools
		if err := svc.Configure(s, managers(s)); err != nil {
			t.Fatal(err)
		}
		f, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		if r != nil || f.Connection != "acct-2" {
			t.Errorf("after acct-1 was removed: %+v %q, want moved to acct-2", f, reason(r))
		}
	})
}

func TestCooldownFollowsTheUpstream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1")
		svc := newService(t, s)
		const usual = 30 * time.Second
		for _, c := range []struct {
			status           int
			retryAfter, date string
			want             time.Duration
		}{
			{200, "60", "", 0}, {500, "60", "", 0}, {503, "60", "", 0},
			{401, "", "", 0}, {402, "60", "", 0}, {403, "", "", 0}, // the client authenticates itself
			{429, "", "", usual}, {429, "nonsense", "", usual}, {429, "-5", "", usual},
			{429, "5", "", 5 * time.Second}, {429, " 90 ", "", 90 * time.Second},
			{429, "0", "", usual}, {429, "Mon, 01 Jan 1990 00:00:10 GMT", "", usual}, // is none
			{429, "601", "", 10 * time.Minute}, {429, "99999999999999", "", 10 * time.Minute},
			{429, "Sat, 01 Jan 2000 00:02:00 GMT", "", 2 * time.Minute},
			{429, "Mon, 01 Jan 2024 00:00:10 GMT", "Mon, 01 Jan 2024 00:00:00 GMT", 10 * time.Second},
		} {
			a := lease.Answered{Pool: pool, Connection: "acct-1", Leased: true, Status: c.status, RetryAfter: c.retryAfter, Date: c.date}
			if got := svc.CooldownFor(a); got != c.want {
				t.Errorf("status %d, Retry-After %q, Date %q: cooldown %v, want %v", c.status, c.retryAfter, c.date, got, c.want)
			}
		}
		// where the gateway authenticates, what is said about that counts, for requests with a lease
		p := s.Pools[pool]
		p.GatewayAuth = true
		s.Pools = map[string]lease.PoolSettings{pool: p}
		svc = newService(t, s)
		for leased, want := range map[bool]time.Duration{true: usual, false: 0} {
			if got := svc.CooldownFor(lease.Answered{Pool: pool, Connection: "acct-1", Leased: leased, Status: 403}); got != want {
				t.Errorf("403 with gatewayAuth, leased %v: cooldown %v, want %v", leased, got, want)
			}
		}
		// a longest cooldown of 0 turns them off
		s.Cooldown.Max = 0
		if got := newService(t, s).CooldownFor(lease.Answered{Pool: pool, Connection: "acct-1", Status: 429, RetryAfter: "5"}); got != 0 {
			t.Errorf("cooldown %v with max 0, want none", got)
		}
	})
}

func TestRepetitionsWithinACooldownCostNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		svc := newInterposed(t, settings("acct-1", "acct-2"), func(script string, _ []any) error {
			if script == "cooldown" {
				calls.Add(1)
			}
			return nil
		})
		ctx := context.Background()
		answered := lease.Answered{Pool: pool, Connection: "acct-1", Status: 429}
		for range 100 {
			if d := svc.CooldownFor(answered); d > 0 {
				if r := svc.SetCooldown(ctx, pool, "acct-1", d); r != nil {
					t.Fatal(r.Reason)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of the store for 100 answers within a cooldown, want 1", n)
		}
		listing, err := svc.List(ctx, pool, 0)
		if err != nil || listing.Connections[0].State != "cooldown" || time.Until(*listing.Connections[0].Cooldown) != 20*time.Second {
			t.Errorf("%+v %v, want 20 s left of the first 30", listing.Connections[0], err)
		}
		// an operator ends it, and the next answer begins another
		if ended, r := svc.EndCooldown(ctx, pool, "acct-1"); r != nil || !ended {
			t.Errorf("end of the cooldown: %v %q", ended, reason(r))
		}
		if ended, r := svc.EndCooldown(ctx, pool, "acct-1"); r != nil || ended {
			t.Errorf("end of no cooldown: %v %q, want false", ended, reason(r))
		}
		if l := acquire(t, svc, 1, teamA); l.Connection != "acct-1" {
			t.Errorf("acquired %s after the cooldown was ended, want acct-1", l.Connection)
		}
		if d := svc.CooldownFor(answered); d == 0 {
			t.Error("no cooldown after the one before was ended")
		}
		// an upstream cannot ask for more than the longest
		if r := svc.SetCooldown(ctx, pool, "acct-2", 24*time.Hour); r != nil {
			t.Fatal(r.Reason)
		}
		listing, _ = svc.List(ctx, pool, 0)
		if got := time.Until(*listing.Connections[1].Cooldown); got != 10*time.Minute {
			t.Errorf("a cooldown of a day lasts %v, want 10 min", got)
		}
	})
}

func TestStoreCanBeReplacedWhileInUse(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := settings("acct-1")
	svc, ctx := newService(t, s), context.Background()
	l := acquire(t, svc, 1, teamA)
	// when the embedded store is replaced by a Redis, its leases are gone
	if err := svc.Configure(onRedis(s, server.Addr), managers(s)); err != nil {
		t.Fatal(err)
	}
	_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	expect(t, "a lease of the old store", r, lease.LeaseRequired)
	// and the generation still grows
	if again := acquire(t, svc, 1, teamA); again.Generation <= l.Generation {
		t.Errorf("generation %d after %d", again.Generation, l.Generation)
	}
	if st := svc.State(); st.Store != "single" {
		t.Errorf("the state says the store is %s", st.Store)
	}
}
