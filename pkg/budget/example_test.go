package budget_test

import (
	"fmt"
	"time"

	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
)

// A budget of 8 MiB: the first body takes six of them, the second waits for its four until the first is released, and a
// body that no empty budget could hold is refused at once.
func Example() {
	c := budget.New(budget.DefaultSettings(), memory.Budget{Bytes: 8 << 20}, nil)

	first, _, _ := c.Acquire(budget.Request{Key: "team-a", Bytes: 6 << 20})
	fmt.Println("first:", first.Bytes(), "bytes reserved")

	_, waiter, _ := c.Acquire(budget.Request{Key: "team-b", Bytes: 4 << 20, MaxWait: 2 * time.Second})
	first.Release()
	<-waiter.Done()
	second, refusal := waiter.Result()
	if refusal != nil {
		fmt.Println("second:", refusal.Reason)
		return
	}
	fmt.Println("second:", second.Bytes(), "bytes reserved")
	second.Release()

	_, _, refusal = c.Acquire(budget.Request{Key: "team-b", Bytes: 9 << 20})
	fmt.Println("third:", refusal.Reason)
	fmt.Println("in flight:", c.Snapshot().InflightBytes)
	// Output:
	// first: 6291456 bytes reserved
	// second: 4194304 bytes reserved
	// third: body_exceeds_budget
	// in flight: 0
}
