package stack

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const clusterSlots = 16384

// RedisCluster is a Redis Cluster of primaries.
type RedisCluster struct {
	Nodes []*Redis
	ids   map[*Redis]string
}

// StartRedisCluster starts n primaries that share all slots evenly. Stop it.
func StartRedisCluster(ctx context.Context, n int, o RedisOptions) (*RedisCluster, error) {
	c := &RedisCluster{ids: map[*Redis]string{}}
	if err := c.start(ctx, n, o); err != nil {
		c.Stop()
		return nil, fmt.Errorf("redis cluster: %w", err)
	}
	return c, nil
}

func (c *RedisCluster) start(ctx context.Context, n int, o RedisOptions) error {
	o.cluster = true
	for i := range n {
		r, err := StartRedis(ctx, o)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, r)
		if c.ids[r], err = r.Client().ClusterMyID(ctx).Result(); err != nil {
			return err
		}
		if err := r.Client().ClusterAddSlotsRange(ctx, i*clusterSlots/n, (i+1)*clusterSlots/n-1).Err(); err != nil {
			return err
		}
		if i > 0 {
			if err := r.Client().ClusterMeet(ctx, "127.0.0.1", c.Nodes[0].Port()).Err(); err != nil {
				return err
			}
		}
	}
	return c.settle(ctx)
}

// settle waits until every node knows every slot's owner.
func (c *RedisCluster) settle(ctx context.Context) error {
	for _, r := range c.Nodes {
		for {
			info, err := r.Client().ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:16384") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes))) {
				break
			}
			if !rest(ctx, 50*time.Millisecond) {
				return fmt.Errorf("node %s does not know the cluster: %s (%w)", r.Addr, info, ctx.Err())
			}
		}
	}
	return nil
}

// Addrs are the nodes' addresses.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, r := range c.Nodes {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}

// Slot returns the slot of a key.
func (c *RedisCluster) Slot(ctx context.Context, key string) (int, error) {
	n, err := c.Nodes[0].Client().ClusterKeySlot(ctx, key).Result()
	return int(n), err
}

// Owner returns the node that serves a slot, by its own word.
func (c *RedisCluster) Owner(ctx context.Context, slot int) (*Redis, error) {
	ranges, err := c.Nodes[0].Client().ClusterSlots(ctx).Result() //nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	if err != nil {
		return nil, err
	}
	for _, s := range ranges {
		for _, r := range c.Nodes {
			if slot >= s.Start && slot <= s.End && len(s.Nodes) > 0 && s.Nodes[0].Addr == r.Addr {
				return r, nil
			}
		}
	}
	return nil, fmt.Errorf("nobody serves slot %d", slot)
}

// MoveSlot reshards one slot the way redis-cli does: mark it, move its keys a few at a time, hand it over. between is
// called before every few keys.
func (c *RedisCluster) MoveSlot(ctx context.Context, slot int, from, to *Redis, between func()) error {
	steps := []struct {
		at   *Redis
		args []any
	}{
		{to, []any{"CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]}},
		{from, []any{"CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to]}},
	}
	for _, s := range steps {
		if _, err := s.at.Do(ctx, s.args...); err != nil {
			return fmt.Errorf("move slot %d: %w", slot, err)
		}
	}
	for {
		between()
		keys, err := from.Client().ClusterGetKeysInSlot(ctx, slot, 2).Result()
		if err != nil {
			return fmt.Errorf("move slot %d: %w", slot, err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", to.Port(), "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		if _, err := from.Do(ctx, args...); err != nil {
			return fmt.Errorf("move slot %d: %w", slot, err)
		}
	}
	for _, at := range append([]*Redis{to, from}, c.Nodes...) {
		if _, err := at.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]); err != nil {
			return fmt.Errorf("hand slot %d over: %w", slot, err)
		}
	}
	return nil
}

// Stop ends all processes.
func (c *RedisCluster) Stop() {
	for _, r := range c.Nodes {
		r.Stop()
	}
}
