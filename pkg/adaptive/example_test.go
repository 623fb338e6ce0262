package adaptive_test

import (
	"fmt"

	"github.com/headgate/headgate/pkg/adaptive"
)

// One place, two tenants: the second request of tenant a and the first of tenant b wait; when the place comes free, the lane
// that has had less is served.
func Example() {
	s := adaptive.DefaultSettings()
	s.Mode = adaptive.Enforce
	s.MinLimit, s.InitialLimit, s.MaxLimit = 1, 1, 1
	c, err := adaptive.New(s)
	if err != nil {
		fmt.Println(err)
		return
	}
	var first, again, other adaptive.Permit
	fmt.Println("a:", c.Acquire(&first, adaptive.Request{Lane: "a", Cost: 1}) == adaptive.Admitted)
	fmt.Println("a again waits:", c.Acquire(&again, adaptive.Request{Lane: "a", Cost: 1}) == adaptive.Waiting)
	fmt.Println("b waits:", c.Acquire(&other, adaptive.Request{Lane: "b", Cost: 1}) == adaptive.Waiting)

	first.Forwarded() // the upstream has the request: the latency sample begins
	first.Done(adaptive.OK)
	<-other.Ready()
	fmt.Println("b is served, refused:", other.Reason() != "")
	other.Done(adaptive.OK)
	<-again.Ready()
	again.Done(adaptive.OK)
	fmt.Println("running:", c.Snapshot().ActiveCount)
	// Output:
	// a: true
	// a again waits: true
	// b waits: true
	// b is served, refused: false
	// running: 0
}
