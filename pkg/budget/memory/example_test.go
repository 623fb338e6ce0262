package memory_test

import (
	"fmt"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// A container of 1 GiB, of which a quarter may be bodies that cost eight bytes of memory each.
func ExampleCeiling_Budget() {
	c := memory.Ceiling{Limits: []memory.Limit{{Source: memory.SourceCgroup, Bytes: 1 << 30, Where: "memory.max"}}}
	b := c.Budget(memory.DefaultBudgetSettings())
	fmt.Printf("%d MiB of %d MiB, by %s\n", b.Bytes>>20, b.Ceiling>>20, b.Source)
	// Output: 32 MiB of 1024 MiB, by cgroup
}
