package lease_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // failing connections are what most of these tests are about
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of them wait for time to pass
	// The client's own probe of a dead server sees only once a second that the client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// rawOwner is an owner header: the prefix and 43 characters that depend on n alone.
func rawOwner(n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "owner %d", n))
	return "vlo_" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// failer is the common part of testing.TB and rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func owner(t failer, n int) lease.Owner {
	t.Helper()
	o, refusal := lease.ParseOwner(rawOwner(n))
	if refusal != nil {
		t.Fatalf("ParseOwner(owner %d): %s", n, refusal.Reason)
	}
	return o
}

const (
	teamA = "team-a"
	teamB = "team-b"
	pool  = "chat"
)

// settings are the defaults with one pool of the given connections, each on an Envoy cluster of its own.
func settings(connections ...string) lease.Settings {
	s := lease.DefaultSettings()
	var list []lease.ConnectionSettings
	for _, c := range connections {
		list = append(list, lease.ConnectionSettings{ID: c, Cluster: "to-" + c})
	}
	s.Pools = map[string]lease.PoolSettings{pool: {Connections: list}}
	return s
}

// onRedis points settings at a Redis. The call timeout is generous: tests share two cores with other tests, and the ones
// about deadlines set it themselves.
func onRedis(s lease.Settings, addr string) lease.Settings {
	s.Store.Redis.Addrs = []string{addr}
	s.Store.Redis.CallTimeout = 5 * time.Second
	s.Store.Redis.DialTimeout = 5 * time.Second
	return s
}

// managers are two managed principals, "key-a" and "key-b", that may use every connection of the settings.
func managers(s lease.Settings) []lease.Principal {
	var all []string
	for _, p := range s.Pools {
		for _, c := range p.Connections {
			all = append(all, c.ID)
		}
	}
	scopes := []string{"lease:exclusive"}
	return []lease.Principal{
		{ID: teamA, KeySHA256: lease.HashKey("key-a"), Scopes: scopes, Connections: all},
		{ID: teamB, KeySHA256: lease.HashKey("key-b"), Scopes: scopes, Connections: all},
	}
}

// newService makes a service that is closed at the end of the test. Nothing is logged.
func newService(t testing.TB, s lease.Settings) *lease.Service {
	t.Helper()
	return newLoggedService(t, s, io.Discard, lease.Observer{})
}

func newLoggedService(t testing.TB, s lease.Settings, log io.Writer, o lease.Observer) *lease.Service {
	t.Helper()
	return newServiceWith(t, s, lease.Options{
		Log:      slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Observer: o,
	})
}

// newInterposed is newService with before in front of the store.
func newInterposed(t testing.TB, s lease.Settings, before func(script string, args []any) error) *lease.Service {
	t.Helper()
	return newServiceWith(t, s, lease.Options{Log: slog.New(slog.DiscardHandler)}.Interposed(before, nil))
}

func newServiceWith(t testing.TB, s lease.Settings, o lease.Options) *lease.Service {
	t.Helper()
	svc, err := lease.New(s, managers(s), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return svc
}

// startRedis starts a Redis that is stopped at the end of the test.
func startRedis(t testing.TB, config ...string) *stack.Redis {
	t.Helper()
	return startServer(t, stack.RedisOptions{Config: config})
}

// startRelay starts a relay that is stopped at the end of the test.
func startRelay(t testing.TB, target string) *stack.Relay {
	t.Helper()
	r, err := stack.StartRelay(stack.RelayOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// within is a context for the test's own calls.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// ask is what owner n of principal who presents.
func ask(t testing.TB, svc *lease.Service, n int, who string, generation int64) lease.Ask {
	t.Helper()
	return lease.Ask{Pool: pool, Owner: owner(t, n), Generation: generation, Identity: svc.Identify(who)}
}

// fence is ask as a request presents it.
func fence(t testing.TB, svc *lease.Service, n int, who string, generation int64) lease.FenceAsk {
	t.Helper()
	a := ask(t, svc, n, who, generation)
	return lease.FenceAsk{Pool: a.Pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity}
}

// acquire must succeed.
func acquire(t testing.TB, svc *lease.Service, n int, who string) lease.Lease {
	t.Helper()
	l, refusal := svc.Acquire(context.Background(), ask(t, svc, n, who, 0), "model")
	if refusal != nil {
		t.Fatalf("acquire by owner %d of %s: %s", n, who, refusal.Reason)
	}
	return l
}

// reason is the refusal's reason, "" for none.
func reason(r *lease.Refusal) lease.Reason {
	if r == nil {
		return ""
	}
	return r.Reason
}

// patience is for what has to happen, where nothing is said about how soon: a busy machine takes its time.
const patience = 2 * time.Minute

// eventually waits until f is true.
func eventually(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// file writes a file into a directory of the test.
func file(t testing.TB, name, content string) string {
	t.Helper()
	path := t.TempDir() + "/" + name
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// answering waits until a service gets answers of its store.
func answering(t testing.TB, svc *lease.Service) {
	t.Helper()
	eventually(t, patience, "an answer of the store", func() bool {
		_, r := svc.Check(context.Background(), fence(t, svc, 1000, teamA, 1))
		return reason(r) == lease.LeaseRequired
	})
}

// move has a lease leave its connection, which is put into cooldown.
func move(t testing.TB, svc *lease.Service, n int, who string, l lease.Lease) (lease.Fence, *lease.Refusal) {
	t.Helper()
	if r := svc.SetCooldown(context.Background(), pool, l.Connection, time.Minute); r != nil {
		return lease.Fence{}, r
	}
	return svc.Check(context.Background(), fence(t, svc, n, who, l.Generation))
}

// onServers runs a test on a Redis and on a Valkey.
func onServers(t *testing.T, test func(t *testing.T, server *stack.Redis)) {
	t.Helper()
	for name, binary := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, startServer(t, stack.RedisOptions{Binary: binary}))
		})
	}
}

// servers are the programs that leases are tested on, by name.
func servers(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, find := range map[string]func(context.Context) (string, error){"redis": stack.FindRedis, "valkey": stack.FindValkey} {
		binary, err := find(within(t, 4*patience)) // it may have to be installed
		if err != nil {
			t.Fatal(err)
		}
		found[name] = binary
	}
	return found
}

// onStores runs a test on every kind of store, with settings that begin with the connections.
func onStores(t *testing.T, connections []string, test func(t *testing.T, s lease.Settings)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, settings(connections...))
	})
	onServers(t, func(t *testing.T, server *stack.Redis) { test(t, onRedis(settings(connections...), server.Addr)) })
}

// startServer starts a Redis or Valkey that is stopped at the end of the test.
func startServer(t testing.TB, o stack.RedisOptions) *stack.Redis {
	t.Helper()
	r, err := stack.StartRedis(within(t, 2*patience), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}
