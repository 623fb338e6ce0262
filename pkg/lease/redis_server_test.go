package lease_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

func TestScriptsComeBackAfterEveryFlush(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, onRedis(settings("acct-1", "acct-2", "acct-3"), server.Addr))
	ctx := within(t, 2*patience)
	flush := func() {
		t.Helper()
		if _, err := server.Do(ctx, "SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	l := acquire(t, svc, 1, teamA)
	a := ask(t, svc, 1, teamA, l.Generation)
	for what, call := range map[string]func() *lease.Refusal{
		"check":     func() *lease.Refusal { _, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation)); return r },
		"renew":     func() *lease.Refusal { _, r := svc.Renew(ctx, a); return r },
		"status":    func() *lease.Refusal { _, r := svc.Status(ctx, a); return r },
		"cooldown":  func() *lease.Refusal { _, r := svc.EndCooldown(ctx, pool, "acct-2"); return r },
		"unmanaged": func() *lease.Refusal { _, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool}); return r },
		"move":      func() *lease.Refusal { _, r := move(t, svc, 1, teamA, l); return r },
	} {
		flush()
		if r := call(); r != nil {
			t.Errorf("%s after SCRIPT FLUSH: %s", what, r.Reason)
		}
	}
	flush()
	if _, r := svc.Release(ctx, a, lease.OwnerExit); r != nil {
		t.Errorf("release after SCRIPT FLUSH: %s", r.Reason)
	}
	// and after a restart the very next call works
	server.Kill()
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	acquire(t, svc, 1, teamA)
}

// TestDemotedPrimaryIsLeft covers connections that stay on a server which has become a replica.
func TestDemotedPrimaryIsLeft(t *testing.T) {
	t.Parallel()
	first, second := startRedis(t), startRedis(t)
	relay := startRelay(t, first.Addr)
	svc := newService(t, onRedis(settings("acct-1"), relay.Addr))
	ctx := within(t, 2*patience)
	l := acquire(t, svc, 1, teamA)
	// when the server becomes a replica, and the address now means the other one
	if _, err := first.Do(ctx, "REPLICAOF", "127.0.0.1", second.Port()); err != nil {
		t.Fatal(err)
	}
	// then the replica's word counts for nothing, although it still has the lease or could answer reads
	_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	expect(t, "check at a replica", r, lease.ServiceUnavailable)
	_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
	expect(t, "unmanaged at a replica", r, lease.ServiceUnavailable)
	relay.Retarget(second.Addr)
	moved := time.Now()
	eventually(t, patience, "an acquire at the new primary", func() bool {
		_, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		return r == nil
	})
	t.Logf("recovered after %v", time.Since(moved))
	for range 50 {
		if _, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation)); reason(r) != lease.FenceStale {
			t.Fatalf("after the recovery: %q, want %s from the new primary", reason(r), lease.FenceStale)
		}
	}
}

// TestStrangeKeysHinderNobody covers keys without a time to live, of another type or with other contents.
func TestStrangeKeysHinderNobody(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	ctx := within(t, 2*patience)
	for i, junk := range [][]any{{"SET", "5"}, {"HSET", "gen", "garbage"}, {"HSET", "c:acct-1", "garbage"}, {"LPUSH", "x"}, {"SET", strings.Repeat("x ", 10)}} {
		s := onRedis(settings("acct-1"), server.Addr)
		s.Store.Redis.KeyPrefix = fmt.Sprintf("junk%d", i)
		svc := newService(t, s)
		fields, events := svc.StoreKeys(pool)
		for _, key := range []string{fields, events} {
			if _, err := server.Do(ctx, append([]any{junk[0], key}, junk[1:]...)...); err != nil {
				t.Fatal(err)
			}
		}
		_, r := svc.Check(ctx, fence(t, svc, 1, teamA, 1))
		expect(t, fmt.Sprintf("check over %v", junk), r, lease.LeaseRequired)
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
		expect(t, fmt.Sprintf("unmanaged over %v", junk), r, "")
		l := acquire(t, svc, 1, teamA)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, fmt.Sprintf("check after an acquire over %v", junk), r, "")
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
		expect(t, fmt.Sprintf("release over %v", junk), r, "")
	}
	noImmortals(t, server)
}

func TestNoKeyOutlivesAKill(t *testing.T) {
	t.Parallel()
	// Given a Redis that writes down every command at once
	server := startRedis(t, "appendonly yes", "appendfsync always")
	svc := newService(t, onRedis(settings("acct-1", "acct-2"), server.Addr))
	ctx := within(t, 2*patience)
	for round := range 10 {
		// So that there is a key. The client takes up to a second to see that the server is back.
		eventually(t, patience, "a write", func() bool { return svc.SetCooldown(ctx, pool, "acct-2", time.Minute) == nil })
		stop := make(chan struct{})
		var busy sync.WaitGroup
		for n := range 3 {
			busy.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					l, r := svc.Acquire(ctx, ask(t, svc, n, teamA, 0), "m")
					if r == nil && n%2 == 0 {
						_, _ = svc.Release(ctx, ask(t, svc, n, teamA, l.Generation), lease.OwnerExit)
					}
					_ = svc.SetCooldown(ctx, pool, "acct-2", time.Millisecond)
					time.Sleep(time.Millisecond) // a dead server refuses at once
				}
			})
		}
		time.Sleep(time.Duration(5+7*round) * time.Millisecond)
		server.Kill()
		close(stop)
		busy.Wait()
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		noImmortals(t, server)
	}
}

func TestStartWithoutAStore(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	server.Kill()
	svc := newService(t, strict(settings("acct-1"), server.Addr))
	ctx := within(t, 2*patience)
	_, r := svc.Check(ctx, fence(t, svc, 1, teamA, 1))
	expect(t, "check without a store", r, lease.ServiceUnavailable)
	if err := svc.Healthy(ctx); err == nil {
		t.Error("healthy without a store")
	}
	if st := svc.State(); st.Status != "degraded" || st.Pools[pool].Error == "" {
		t.Errorf("state %+v, want degraded with the error", st)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "health without any traffic", func() bool { return svc.Healthy(ctx) == nil })
	eventually(t, patience, "a lease", func() bool {
		_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
		return r == nil
	})
}

func TestStoreErrorsCanBeAllowed(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := onRedis(settings("acct-1"), server.Addr)
	s.OnStoreError = "allow"
	var log syncBuffer
	svc := newLoggedService(t, s, &log, lease.Observer{})
	ctx := within(t, 2*patience)
	l := acquire(t, svc, 1, teamA)
	server.Kill()
	f, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	if r != nil || !f.Unchecked || f.Connection != "" {
		t.Errorf("check without a store: %+v %q, want let through unchecked, without a connection", f, reason(r))
	}
	if f, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool}); r != nil || !f.Unchecked {
		t.Errorf("unmanaged without a store: %+v %q", f, reason(r))
	}
	if !strings.Contains(log.String(), "let through unchecked") {
		t.Errorf("nothing of it in the log: %s", log.String())
	}
	_, r = svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
	expect(t, "acquire without a store", r, lease.ServiceUnavailable)
}

// syncBuffer is a buffer that loggers of several goroutines may write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLoadingStoreIsWaitedFor: a server that has a data set to load answers -LOADING to everything until it is done.
func TestLoadingStoreIsWaitedFor(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go sayLoading(c)
		}
	}()
	server := startRedis(t)
	relay := startRelay(t, l.Addr().String())
	s := strict(settings("acct-1"), relay.Addr)
	s.Store.Redis.CallTimeout = 250 * time.Millisecond
	svc := newService(t, s)
	ctx := within(t, 2*patience)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, r := svc.Check(ctx, fence(t, svc, 1, teamA, 1)); reason(r) != lease.ServiceUnavailable {
			t.Fatalf("while loading: %q, want %s", reason(r), lease.ServiceUnavailable)
		}
	}
	relay.Retarget(server.Addr)
	relay.Cut()
	eventually(t, patience, "a lease once it has loaded", func() bool {
		_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
		return r == nil
	})
}

// sayLoading answers every command with -LOADING.
func sayLoading(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		var n int
		if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
			return
		}
		for range n {
			var size int
			if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
				return
			}
			if _, err := in.Discard(size + 2); err != nil {
				return
			}
		}
		fmt.Fprint(c, "-LOADING Redis is loading the dataset in memory\r\n")
	}
}

func TestEvictedLeaseIsLostNotShared(t *testing.T) {
	t.Parallel()
	// Given a server that may evict, which is said in the log
	server := startRedis(t, "maxmemory 3mb", "maxmemory-policy allkeys-lru")
	var log syncBuffer
	svc := newLoggedService(t, onRedis(settings("acct-1"), server.Addr), &log, lease.Observer{})
	ctx := within(t, 2*patience)
	eventually(t, patience, "a warning about the eviction policy", func() bool { return strings.Contains(log.String(), "policy=allkeys-lru") })
	if got := svc.State().Eviction; got != "allkeys-lru" {
		t.Errorf("the state reports policy %q", got)
	}
	l := acquire(t, svc, 1, teamA)
	fields, _ := svc.StoreKeys(pool)
	// when it is filled until the lease is gone
	filler := strings.Repeat("x", 4<<10)
	eventually(t, patience, "the eviction of the lease", func() bool {
		for i := range 200 {
			if err := server.Client().Set(ctx, fmt.Sprintf("filler:%d:%d", time.Now().UnixNano(), i), filler, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
		}
		n, err := server.Client().Exists(ctx, fields).Result()
		return err == nil && n == 0
	})
	// then the holder is told
	_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
	expect(t, "renewal of an evicted lease", r, lease.FenceStale)
	_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	expect(t, "check of an evicted lease", r, lease.LeaseRequired)
}

func TestFullStoreStillRenewsAndReleases(t *testing.T) {
	t.Parallel()
	server := startRedis(t, "maxmemory-policy noeviction")
	svc := newService(t, onRedis(settings("acct-1", "acct-2"), server.Addr))
	ctx := within(t, 2*patience)
	l := acquire(t, svc, 1, teamA)
	if _, err := server.Do(ctx, "CONFIG", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	_, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
	expect(t, "acquire at a full store", r, lease.ServiceUnavailable)
	for range 10 { // more refusals than open a breaker: the store works, it only does not grow
		_, _ = svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
	}
	_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	expect(t, "check at a full store", r, "")
	renewed, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
	expect(t, "renewal at a full store", r, "")
	if !renewed.ExpiresAt.After(l.ExpiresAt) {
		t.Errorf("renewed to %v, was %v", renewed.ExpiresAt, l.ExpiresAt)
	}
	_, r = move(t, svc, 1, teamA, l)
	expect(t, "move at a full store", r, "")
	_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
	expect(t, "release at a full store", r, "")
	noImmortals(t, server)
	if _, err := server.Do(ctx, "CONFIG", "SET", "maxmemory", "0"); err != nil {
		t.Fatal(err)
	}
	acquire(t, svc, 2, teamA)
}
