package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
)

// An agent acquires the only account of a pool, its request passes the fence, and a second agent finds no free account until
// the first has released it. The generation is what the owner repeats with each request.
func Example() {
	s := lease.DefaultSettings()
	s.Pools = map[string]lease.PoolSettings{"chat": {Connections: []lease.ConnectionSettings{{ID: "account-1", Cluster: "upstream-1"}}}}
	agents := lease.Principal{ID: "agents", Scopes: []string{"lease:exclusive"}, Connections: []string{"account-1"}}
	service, err := lease.New(s, []lease.Principal{agents}, lease.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer service.Close()
	ctx := context.Background()
	caller := service.Identify("agents")
	first, _ := lease.ParseOwner("vlo_" + strings.Repeat("a", 43))
	second, _ := lease.ParseOwner("vlo_" + strings.Repeat("b", 43))

	held, refusal := service.Acquire(ctx, lease.Ask{Pool: "chat", Owner: first, Identity: caller}, "")
	fmt.Println("first:", held.Outcome, held.Connection, refusal == nil)

	fence, refusal := service.Check(ctx, lease.FenceAsk{Pool: "chat", Owner: first, Generation: held.Generation, Identity: caller})
	fmt.Println("request goes to:", fence.Cluster, refusal == nil)

	_, refusal = service.Acquire(ctx, lease.Ask{Pool: "chat", Owner: second, Identity: caller}, "")
	fmt.Println("second:", refusal.Reason)

	_, _ = service.Release(ctx, lease.Ask{Pool: "chat", Owner: first, Generation: held.Generation, Identity: caller}, lease.OwnerExit)
	held, _ = service.Acquire(ctx, lease.Ask{Pool: "chat", Owner: second, Identity: caller}, "")
	fmt.Println("second:", held.Outcome, held.Connection)
	// Output:
	// first: ACQUIRED account-1 true
	// request goes to: upstream-1 true
	// second: LEASE_CAPACITY_UNAVAILABLE
	// second: ACQUIRED account-1
}
