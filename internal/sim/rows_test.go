package sim

import "testing"

// The rows that the lanes reach on any seeds, brief and on three that are not among those of the report; all of them, those
// that are missed too, are behind `make sim`.
func TestRows(t *testing.T) {
	t.Parallel()
	reached := map[string]bool{
		"a tenant's own refusals": true, "a tenant's own errors": true, "shared quota": true, "outage": true, "context": true, "large prompts": true, "two classes": true, "service time": true,
	}
	for _, row := range Rows() {
		if !reached[row.Name] {
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			check(t, row.Goals(&Bench{Run: bubble(t), Brief: true, Seeds: []uint64{1, 2, 3}}))
		})
	}
}
