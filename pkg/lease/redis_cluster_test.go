package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// TestAcquireWaitsForReplicasOverResharding: with waitReplicas a lease is confirmed by the replica of whichever node the pool's
// slot is on, before and after it moves; where that replica does not confirm, there is no lease.
func TestAcquireWaitsForReplicasOverResharding(t *testing.T) {
	t.Parallel()
	for name, binary := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waitsForReplicasOverResharding(t, binary)
		})
	}
}

func waitsForReplicasOverResharding(t *testing.T, binary string) {
	ctx := within(t, 3*patience)
	cluster, err := stack.StartRedisCluster(ctx, 3, stack.RedisOptions{Binary: binary, Config: []string{"repl-diskless-sync-delay 0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	replicaOf := map[*stack.Redis]*stack.Redis{}
	for _, primary := range cluster.Nodes {
		if replicaOf[primary], err = cluster.AddReplica(ctx, primary); err != nil {
			t.Fatal(err)
		}
	}
	s := onRedis(settings("acct-1"), cluster.Nodes[0].Addr)
	s.Store.Redis.Kind, s.Store.Redis.WaitReplicas, s.Store.Redis.CallTimeout = "cluster", 1, time.Second
	svc := newService(t, s)
	key, _ := svc.StoreKeys(pool)
	slot, err := cluster.Slot(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	// session acquires, looks at the replica and releases.
	session := func(when string, on *stack.Redis) {
		t.Helper()
		began := time.Now()
		var l lease.Lease
		eventually(t, patience, "a lease "+when, func() bool {
			var r *lease.Refusal
			l, r = svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
			if r == nil && !replicaHas(ctx, t, replicaOf[on], key) {
				t.Errorf("%s: the replica of the slot's node does not have the lease when the acquire answers", when)
			}
			return r == nil
		})
		t.Logf("%s: a lease after %v", when, time.Since(began))
		eventually(t, patience, "a release "+when, func() bool {
			_, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
			return r == nil
		})
	}
	from, err := cluster.Owner(ctx, slot)
	if err != nil {
		t.Fatal(err)
	}
	session("before the slot moves", from)
	for _, to := range cluster.Nodes {
		if to == from {
			continue
		}
		if err := cluster.MoveSlot(ctx, slot, from, to, func() {}); err != nil {
			t.Fatal(err)
		}
		session("after the slot has moved", to)
		from = to
	}
	// when the replica of the node that the slot is on now stands still, then the others confirm nothing in its place
	if err := replicaOf[from].Freeze(); err != nil {
		t.Fatal(err)
	}
	_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
	expect(t, "acquire that the slot's replica does not confirm", r, lease.ServiceUnavailable)
	eventually(t, patience, "the unconfirmed lease to be undone", func() bool {
		has, err := from.Client().HExists(ctx, key, "c:acct-1").Result()
		return err == nil && !has
	})
}

// replicaHas says whether a replica in a Cluster has the lease on acct-1.
func replicaHas(ctx context.Context, t *testing.T, replica *stack.Redis, key string) bool {
	t.Helper()
	var has *redis.BoolCmd
	_, err := replica.Client().Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ReadOnly(ctx)
		has = p.HExists(ctx, key, "c:acct-1")
		return nil
	})
	if err != nil {
		t.Fatalf("ask the replica %s: %v", replica.Addr, err)
	}
	return has.Val()
}
