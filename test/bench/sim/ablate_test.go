//go:build sim

package sim

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/internal/sim"
	"github.com/headgate/headgate/pkg/adaptive"
)

// TestAblate prints the table of rows with one part of the controller switched off at a time, for those parts that a setting
// switches. It judges nothing, and uses the seeds that the controller was tuned on.
func TestAblate(t *testing.T) {
	r := &report{t: t}
	for _, part := range []struct {
		name   string
		change func(*adaptive.Settings)
	}{
		{"everything as it ships", func(*adaptive.Settings) {}},
		{"without a bound on a request's place (maxShare 1)", func(s *adaptive.Settings) { s.MaxShare = 1 }},
		{"without a price for context (contextQuantum 0)", func(s *adaptive.Settings) { s.ContextQuantum = 0 }},
		{"without trials when latency doubles at most (latencyGradientThreshold 1)", func(s *adaptive.Settings) { s.LatencyGradientThreshold = 1 }},
		{"growth by one a window (maxIncreasePerWindow 1)", func(s *adaptive.Settings) { s.MaxIncreasePerWindow = 1 }},
		{"searches in small steps (criticalDecreaseFactor 0.8)", func(s *adaptive.Settings) { s.CriticalDecreaseFactor = s.DecreaseFactor }},
	} {
		fmt.Printf("\n%s\n", part.name)
		bench := &sim.Bench{Run: r.run, Seeds: tuningSeeds, Brief: true, Change: part.change}
		for _, row := range sim.Rows() {
			r.add(row.Goals(bench)...)
		}
	}
}
