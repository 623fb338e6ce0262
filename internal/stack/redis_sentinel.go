package stack

import (
	"context"
	"fmt"
	"net"
	"time"
)

// SentinelGroup is a primary, its replicas and their sentinels.
type SentinelGroup struct {
	Name      string
	Nodes     []*Redis // the first is the primary at the start
	Sentinels []*Redis
}

// StartSentinel starts a primary with replicas and sentinels that agree by majority. o applies to the data nodes. Stop it.
func StartSentinel(ctx context.Context, replicas, sentinels int, o RedisOptions) (*SentinelGroup, error) {
	g := &SentinelGroup{Name: "primary"}
	if err := g.start(ctx, replicas, sentinels, o); err != nil {
		g.Stop()
		return nil, fmt.Errorf("sentinel group: %w", err)
	}
	return g, nil
}

func (g *SentinelGroup) start(ctx context.Context, replicas, sentinels int, o RedisOptions) error {
	for i := range replicas + 1 {
		node := o
		node.Config = append([]string{"repl-diskless-sync yes", "repl-diskless-sync-delay 0"}, o.Config...)
		if i > 0 {
			node.Config = append(node.Config, "replicaof 127.0.0.1 "+g.Nodes[0].Port())
		}
		r, err := StartRedis(ctx, node)
		if err != nil {
			return err
		}
		g.Nodes = append(g.Nodes, r)
	}
	for range sentinels {
		s, err := StartRedis(ctx, RedisOptions{Binary: o.Binary, sentinel: true, Config: []string{
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s %d", g.Name, g.Nodes[0].Port(), sentinels/2+1),
			"sentinel down-after-milliseconds " + g.Name + " 800",
			"sentinel failover-timeout " + g.Name + " 5000",
			"sentinel parallel-syncs " + g.Name + " 1",
		}})
		if err != nil {
			return err
		}
		g.Sentinels = append(g.Sentinels, s)
	}
	return g.awaitMembers(ctx, replicas, sentinels)
}

// awaitMembers waits until every sentinel knows the replicas and the other sentinels: before, no failover succeeds.
func (g *SentinelGroup) awaitMembers(ctx context.Context, replicas, sentinels int) error {
	for _, s := range g.Sentinels {
		for {
			info, err := s.Client().Do(ctx, "SENTINEL", "MASTER", g.Name).Slice()
			if err == nil && pairs(info)["num-slaves"] == fmt.Sprint(replicas) && pairs(info)["num-other-sentinels"] == fmt.Sprint(sentinels-1) {
				break
			}
			if !pause(ctx, 50*time.Millisecond) {
				return fmt.Errorf("sentinel %s does not know its group: %v (%w)", s.Addr, pairs(info), ctx.Err())
			}
		}
	}
	return nil
}

// Addrs are the sentinels' addresses.
func (g *SentinelGroup) Addrs() []string {
	var addrs []string
	for _, s := range g.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Primary returns the node that the sentinels call the primary.
func (g *SentinelGroup) Primary(ctx context.Context) (*Redis, error) {
	at, err := g.Sentinels[0].Client().Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name).StringSlice()
	if err != nil || len(at) != 2 {
		return nil, fmt.Errorf("query the primary: %v %w", at, err)
	}
	for _, n := range g.Nodes {
		if n.Addr == net.JoinHostPort(at[0], at[1]) {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the primary %v is none of the nodes", at)
}

// Stop ends all processes.
func (g *SentinelGroup) Stop() {
	for _, r := range append(append([]*Redis{}, g.Sentinels...), g.Nodes...) {
		r.Stop()
	}
}

// pairs turns a flat list of names and values into a map.
func pairs(list []any) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		m[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return m
}

// pause waits for d and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
