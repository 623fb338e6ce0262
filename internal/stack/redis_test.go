package stack

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

func redisContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRedisLosesEverythingWhenKilled(t *testing.T) {
	t.Parallel()
	// Given a Redis that holds a key
	ctx := redisContext(t)
	r, err := StartRedis(ctx, RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	if _, err := r.Do(ctx, "SET", "k", "v"); err != nil {
		t.Fatal(err)
	}
	// when it is killed and started again
	r.Kill()
	if err := r.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	// then it answers on the same port, empty
	if n, err := r.Do(ctx, "DBSIZE"); err != nil || n != int64(0) {
		t.Errorf("DBSIZE after kill -9 = %v, %v; want 0", n, err)
	}
}

func TestSentinelGroupFailsOver(t *testing.T) {
	t.Parallel()
	ctx := redisContext(t)
	g, err := StartSentinel(ctx, 1, 1, RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	before, err := g.Primary(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before.Kill()
	for {
		after, err := g.Primary(ctx)
		if err == nil && after != before {
			return
		}
		if !pause(ctx, 100*time.Millisecond) {
			t.Fatalf("no failover away from %s: %v", before.Addr, err)
		}
	}
}

func TestClusterMovesASlotWithItsKeys(t *testing.T) {
	t.Parallel()
	ctx := redisContext(t)
	c, err := StartRedisCluster(ctx, 3, RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	slot, err := c.Slot(ctx, "{pool}")
	if err != nil {
		t.Fatal(err)
	}
	from, err := c.Owner(ctx, slot)
	if err != nil {
		t.Fatal(err)
	}
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	for i := range 5 {
		if _, err := from.Do(ctx, "SET", fmt.Sprintf("{pool}:%d", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.MoveSlot(ctx, slot, from, to, func() {}); err != nil {
		t.Fatal(err)
	}
	if n, err := to.Do(ctx, "DBSIZE"); err != nil || n != int64(5) {
		t.Errorf("the new owner holds %v keys (%v), want 5", n, err)
	}
}

func TestRelayMisbehavesAsTold(t *testing.T) {
	t.Parallel()
	// Given a relay before a server that repeats lines
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
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, s.Text())
				}
			}()
		}
	}()
	relay, err := StartRelay(RelayOptions{Target: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Stop()
	ask := func(within time.Duration) error {
		c, err := net.Dial("tcp", relay.Addr)
		if err != nil {
			return err
		}
		defer c.Close()
		fmt.Fprintln(c, "hello")
		_ = c.SetReadDeadline(time.Now().Add(within))
		_, err = bufio.NewReader(c).ReadString('\n')
		return err
	}
	if err := ask(5 * time.Second); err != nil {
		t.Fatalf("plain relay: %v", err)
	}
	relay.DelayReplies(300 * time.Millisecond)
	if start := time.Now(); ask(5*time.Second) != nil || time.Since(start) < 300*time.Millisecond {
		t.Errorf("a reply delayed by 300 ms came after %v", time.Since(start))
	}
	relay.DelayReplies(0)
	relay.DropReplies(true)
	if ask(200*time.Millisecond) == nil {
		t.Error("a dropped reply arrived")
	}
	relay.DropReplies(false)
	relay.BlackHole(true)
	if ask(200*time.Millisecond) == nil {
		t.Error("a reply came out of the black hole")
	}
}

func TestSilenceAnswersNoConnectionAttempt(t *testing.T) {
	t.Parallel()
	addr, stop, err := StartSilence()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
	if err == nil {
		c.Close()
		t.Fatalf("connected to %s, which must stay silent", addr)
	}
	if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
		t.Errorf("dial: %v, want a time-out", err)
	}
}
