package cross

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// table collects what became of every cell.
type table struct {
	mu    sync.Mutex
	cells map[string]string
}

// newTable prints the table when the test is over.
func newTable(t *testing.T) *table {
	r := &table{cells: map[string]string{}}
	t.Cleanup(r.print)
	return r
}

func key(e envoy, k kind, m stack.Mode) string { return e.String() + "|" + k.name + "|" + string(m) }

func (r *table) add(e envoy, k kind, m stack.Mode, result string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells[key(e, k, m)] += result
}

func (r *table) print() {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-10s %-17s", "Envoy", "request")
	for _, m := range modes {
		fmt.Fprintf(&b, " %-15s", m)
	}
	for _, e := range envoys {
		for _, k := range kinds {
			fmt.Fprintf(&b, "\n%-10s %-17s", e, k.name)
			for _, m := range modes {
				fmt.Fprintf(&b, " %-15s", r.cells[key(e, k, m)])
			}
		}
	}
	b.WriteString("\n\nEach letter is an end that the request had as it should:")
	for _, end := range ends {
		fmt.Fprintf(&b, " %s %s;", end.letter, end.what)
	}
	b.WriteString(" ! before a letter: not as it should; -: not possible there.\n")
	fmt.Fprint(os.Stdout, b.String())
}
