package docs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// measuredLeases is how many leases the figures are an average over.
const measuredLeases = 200

// TestStoreFigures: the page for operators says what leases take in a real Redis, and which permissions are enough.
func TestStoreFigures(t *testing.T) {
	if *update { // make generate needs no programs
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server, err := stack.StartRedis(ctx, stack.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: 2, DisableIdentity: true})
	defer client.Close()
	setUser(ctx, t, client)
	svc, id := service(t, server.Addr)
	defer svc.Close()

	generations := make([]int64, measuredLeases)
	ask := func(i int) lease.Ask {
		owner, refusal := lease.ParseOwner(fmt.Sprintf("vlo_%043d", i))
		if refusal != nil {
			t.Fatal(refusal.Reason)
		}
		return lease.Ask{Pool: "chat", Owner: owner, Generation: generations[i%measuredLeases], Identity: id}
	}
	acquire := func(i int) lease.Lease {
		l, refusal := svc.Acquire(ctx, ask(i), "any")
		if refusal != nil {
			t.Fatalf("acquire %d: %s", i, refusal.Reason)
		}
		return l
	}
	generations[0] = acquire(0).Generation // makes the pool and sends the scripts
	if _, refusal := svc.Release(ctx, ask(0), lease.OwnerExit); refusal != nil {
		t.Fatalf("release: %s", refusal.Reason)
	}
	before := usedMemory(ctx, t, client)
	for i := range generations {
		generations[i] = acquire(i).Generation
	}
	all := usedMemory(ctx, t, client) - before
	sizes := map[string]int64{
		"`headgate:{pool}:leases`": client.MemoryUsage(ctx, "headgate:{chat}:leases", 0).Val() / measuredLeases,
		"`headgate:{pool}:events`": client.MemoryUsage(ctx, "headgate:{chat}:events", 0).Val() / client.XLen(ctx, "headgate:{chat}:events").Val(),
	}
	everything(ctx, t, svc, ask)
	sizesInPage(t, sizes)
	if most := int64(800 + 140); all/measuredLeases > most {
		t.Errorf("a live lease with its event takes %d bytes, the page says at most %d", all/measuredLeases, most)
	}
	if denied := client.Do(ctx, "ACL", "LOG").Val(); fmt.Sprint(denied) != "[]" {
		t.Errorf("the user of the page was denied %v", denied)
	}
}

// setUser makes the user of the page, and lets it do what the page allows and no more.
func setUser(ctx context.Context, t *testing.T, client *redis.Client) {
	t.Helper()
	rules := regexp.MustCompile(`(?m)^user (headgate .*)$`).FindStringSubmatch(read(t, "leases-operators.md"))
	if rules == nil {
		t.Fatal("leases-operators.md has no ACL user")
	}
	args := []any{"ACL", "SETUSER"}
	for _, rule := range strings.Fields(rules[1]) {
		args = append(args, rule)
	}
	if err := client.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// service is a lease service that talks to the Redis as the page's user.
func service(t *testing.T, addr string) (*lease.Service, lease.Identity) {
	t.Helper()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("change-me\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := lease.DefaultSettings()
	s.Store.Redis.Addrs, s.Store.Redis.CallTimeout = []string{addr}, 5*time.Second
	s.Store.Redis.Username, s.Store.Redis.PasswordFile = "headgate", password
	var pool lease.PoolSettings
	team := lease.Principal{ID: "team-a", Scopes: []string{"lease:exclusive"}}
	for i := range measuredLeases + 2 {
		name := fmt.Sprintf("account-%04d", i)
		pool.Connections = append(pool.Connections, lease.ConnectionSettings{ID: name})
		team.Connections = append(team.Connections, name)
	}
	s.Pools = map[string]lease.PoolSettings{"chat": pool}
	svc, err := lease.New(s, []lease.Principal{team}, lease.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return svc, svc.Identify("team-a")
}

// everything does what the service can do, once, with the lease of owner 1.
func everything(ctx context.Context, t *testing.T, svc *lease.Service, ask func(int) lease.Ask) {
	t.Helper()
	a := ask(1)
	check := func() (lease.Fence, *lease.Refusal) {
		return svc.Check(ctx, lease.FenceAsk{Pool: a.Pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity})
	}
	fence, refusal := check()
	if refusal != nil {
		t.Fatalf("check: %s", refusal.Reason)
	}
	for _, step := range []struct {
		name string
		do   func() *lease.Refusal
	}{
		{"renew", func() *lease.Refusal { _, r := svc.Renew(ctx, a); return r }},
		{"status", func() *lease.Refusal { _, r := svc.Status(ctx, a); return r }},
		{"unmanaged", func() *lease.Refusal { _, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: a.Pool}); return r }},
		{"cooldown", func() *lease.Refusal { return svc.SetCooldown(ctx, a.Pool, fence.Connection, time.Minute) }},
		{"check in cooldown", func() *lease.Refusal { _, r := check(); return r }},
		{"list", func() *lease.Refusal {
			if l, err := svc.List(ctx, a.Pool, 10); err != nil || len(l.Events) == 0 {
				t.Errorf("list: %v, %d events", err, len(l.Events))
			}
			return nil
		}},
		{"end of a cooldown", func() *lease.Refusal { _, r := svc.EndCooldown(ctx, a.Pool, fence.Connection); return r }},
		{"end", func() *lease.Refusal {
			_, r := svc.EndLease(ctx, a.Pool, fence.Connection, lease.QuotaUnavailable)
			if r != nil && r.Reason == lease.LeaseRequired { // it has moved from there
				return nil
			}
			return r
		}},
	} {
		if r := step.do(); r != nil {
			t.Errorf("%s: %s", step.name, r.Reason)
		}
	}
}

// sizesInPage compares what was measured with the table: another Redis may differ by a quarter.
func sizesInPage(t *testing.T, measured map[string]int64) {
	t.Helper()
	for _, row := range rows(t, "leases-operators.md") {
		got, ok := measured[row[0]]
		if !ok {
			continue
		}
		delete(measured, row[0])
		figure, _, _ := strings.Cut(row[len(row)-1], " ")
		want, err := strconv.ParseInt(figure, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", row[0], err)
		}
		if got < want*3/4 || got > want*5/4 {
			t.Errorf("%s takes %d bytes, the page says %d", row[0], got, want)
		}
	}
	for name := range measured {
		t.Errorf("leases-operators.md has no row for %s", name)
	}
}

// usedMemory is what the Redis has allocated, in bytes.
func usedMemory(ctx context.Context, t *testing.T, client *redis.Client) int64 {
	t.Helper()
	m := regexp.MustCompile(`used_memory:(\d+)`).FindStringSubmatch(client.Info(ctx, "memory").Val())
	if m == nil {
		t.Fatal("the Redis does not say what it uses")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
