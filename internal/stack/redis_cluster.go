package stack

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const clusterSlots = 16384

// RedisCluster is a Redis Cluster.
type RedisCluster struct {
	Nodes    []*Redis // primaries
	replicas []*Redis
	ids      map[*Redis]string
	o        RedisOptions
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
	c.o = o
	for i := range n {
		r, err := c.join(ctx)
		if r != nil {
			c.Nodes = append(c.Nodes, r)
		}
		if err != nil {
			return err
		}
		if err := r.Client().ClusterAddSlotsRange(ctx, i*clusterSlots/n, (i+1)*clusterSlots/n-1).Err(); err != nil {
			return err
		}
	}
	return c.known(ctx)
}

// join starts a node without slots that meets the first one.
func (c *RedisCluster) join(ctx context.Context) (*Redis, error) {
	r, err := StartRedis(ctx, c.o)
	if err != nil {
		return nil, err
	}
	if c.ids[r], err = r.Client().ClusterMyID(ctx).Result(); err != nil {
		return r, err
	}
	if len(c.Nodes) > 0 {
		err = r.Client().ClusterMeet(ctx, "127.0.0.1", c.Nodes[0].Port()).Err()
	}
	return r, err
}

// AddReplica starts a replica of a primary and waits until it is connected.
func (c *RedisCluster) AddReplica(ctx context.Context, primary *Redis) (*Redis, error) {
	r, err := c.join(ctx)
	if r != nil {
		c.replicas = append(c.replicas, r)
	}
	if err == nil {
		err = c.known(ctx)
	}
	if err == nil {
		err = r.Client().ClusterReplicate(ctx, c.ids[primary]).Err()
	}
	for err == nil {
		info, infoErr := r.Client().Info(ctx, "replication").Result()
		if infoErr == nil && strings.Contains(info, "master_link_status:up") {
			return r, nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			err = ctx.Err()
		}
	}
	return nil, fmt.Errorf("redis cluster: add a replica: %w", err)
}

// known waits until every node knows all nodes and every slot's owner.
func (c *RedisCluster) known(ctx context.Context) error {
	nodes := append(c.Nodes[:len(c.Nodes):len(c.Nodes)], c.replicas...)
	for _, r := range nodes {
		for {
			info, err := r.Client().ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:16384") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(nodes))) {
				break
			}
			if !pause(ctx, 50*time.Millisecond) {
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
	for _, r := range append(c.Nodes[:len(c.Nodes):len(c.Nodes)], c.replicas...) {
		r.Stop()
	}
}
