package lease_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// TestEmbeddedStoreKeepsLeasesOverARestart: with a file.
func TestEmbeddedStoreKeepsLeasesOverARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2", "acct-3")
		s.Store.EmbeddedPath = filepath.Join(t.TempDir(), "leases")
		open := func() *lease.Service {
			svc, err := lease.New(s, managers(s), lease.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return svc
		}
		ctx := context.Background()
		// Given a lease that has moved, one that has ended, and a cooldown
		svc := open()
		l, gone := acquire(t, svc, 1, teamA), acquire(t, svc, 2, teamB)
		moved, r := move(t, svc, 1, teamA, l)
		expect(t, "move", r, "")
		if _, r := svc.Release(ctx, ask(t, svc, 2, teamB, gone.Generation), lease.OwnerExit); r != nil {
			t.Fatal(r.Reason)
		}
		for range 10_500 { // more lines than the file may have
			if _, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation)); r != nil {
				t.Fatal(r.Reason)
			}
		}
		// when a second process names the same file, it does not start
		if second, err := lease.New(s, managers(s), lease.Options{}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("a second process: %v %v, want refused", second, err)
		}
		if err := svc.Close(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(s.Store.EmbeddedPath); err != nil || info.Size() > 5<<20 {
			t.Errorf("the file has %v (%v), want it written anew when it grows", info, err)
		}
		// when the process comes back after a minute, in which its last line was cut, it goes on with all of it
		time.Sleep(time.Minute)
		f, err := os.OpenFile(s.Store.EmbeddedPath, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(`{"key":"headgate:{chat}:leases","fields":{"c:acct-`)
		f.Close()
		svc = open()
		got, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		if r != nil || got.Connection != moved.Connection || got.Token != moved.Token {
			t.Errorf("after the restart %+v %q, want %s with token %d", got, reason(r), moved.Connection, moved.Token)
		}
		if again, r := svc.Release(ctx, ask(t, svc, 2, teamB, gone.Generation), lease.OwnerExit); r != nil || again.State != "RELEASED" {
			t.Errorf("repeated release after the restart: %+v %q", again, reason(r))
		}
		listing, err := svc.List(ctx, pool, 0)
		if err != nil || listing.Connections[0].Cooldown != nil {
			t.Errorf("the cooldown of a minute is over: %+v %v", listing.Connections[0], err)
		}
		if next := acquire(t, svc, 3, teamA); next.Generation <= moved.Token {
			t.Errorf("generation %d after the restart, %d was given before", next.Generation, moved.Token)
		}
		if err := svc.Close(); err != nil {
			t.Fatal(err)
		}
		// what is in the file and is no record is an error that says where
		if err := os.WriteFile(s.Store.EmbeddedPath, []byte("{}\nnothing of ours\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := lease.New(s, managers(s), lease.Options{}); err == nil || !strings.Contains(err.Error(), "leases.store.embeddedPath") || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("a file that is something else: %v, want an error with the setting and line 2", err)
		}
	})
}

// TestUnusedSettingsLeaveTheStoreAlone: a change of what the present store does not look at costs no leases.
func TestUnusedSettingsLeaveTheStoreAlone(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"acct-1"}, func(t *testing.T, s lease.Settings) {
		svc, ctx := newService(t, s), within(t, 2*patience)
		l := acquire(t, svc, 1, teamA)
		if s.Store.Redis.Addrs == nil {
			s.Store.Redis.CallTimeout, s.Store.Redis.PoolSize, s.Store.Redis.Username = time.Second, 3, "somebody"
		} else {
			s.Store.Embedded, s.Store.Redis.MasterName = !s.Store.Embedded, "nobody"
		}
		if err := svc.Configure(s, managers(s)); err != nil {
			t.Fatal(err)
		}
		_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check after a change of unused settings", r, "")
		_, r = svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		expect(t, "another owner", r, lease.CapacityUnavailable)
	})
}

func TestEmbeddedStoreSaysWhatItIsWherePoolsAre(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	s := lease.DefaultSettings()
	svc := newLoggedService(t, s, &log, lease.Observer{})
	if strings.Contains(log.String(), "one replica only") {
		t.Errorf("without pools the log says %s", log.String())
	}
	if err := svc.Configure(settings("acct-1"), nil); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "one replica only, nothing survives a restart") {
		t.Errorf("with a pool the log says %q, want what the store is", log.String())
	}
}

// TestEmbeddedCheckIsCheap guards what a check allocates; it was 222 kB in 891 pieces over a Redis in the process.
func TestEmbeddedCheckIsCheap(t *testing.T) {
	svc := newService(t, settings("acct-1", "acct-2"))
	l := acquire(t, svc, 1, teamA)
	f := fence(t, svc, 1, teamA, l.Generation)
	got := testing.AllocsPerRun(200, func() {
		if _, r := svc.Check(context.Background(), f); r != nil {
			t.Fatal(r.Reason)
		}
	})
	if got > 120 {
		t.Errorf("a check allocates %v times, want at most 120", got)
	}
}
