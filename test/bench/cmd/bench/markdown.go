package main

import (
	"fmt"
	"strings"
)

// markdown writes goals and figures for a page.
func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; medians of %d rounds of %s, in turns; processor time in µs a request.\n", r.Machine, r.Rounds, r.Duration)
	if len(r.Goals) > 0 {
		b.WriteString("\n| goal | measured (least to largest round) | wanted | |\n|---|---|---|---|\n")
		for _, o := range r.Goals {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.Goal, o.figure(), o.want(), o.verdict())
		}
	}
	b.WriteString("\n| setting | request | server | requests/s | Envoy | server | Redis | whole, to Envoy alone | server, to " + r.Baseline + " | p50 µs | p99 µs |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		m, alone := row.Median, "–"
		if to := r.find(row.setting, row.Shape, envoyAlone); to != nil {
			alone = fmt.Sprintf("%.2f", newRatio(row.Samples, to.Samples, figures.whole).Median)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.0f | %s | %s | %s | %s | %.2f | %s | %s |\n", row.setting, row.Shape, row.Server, m.PerSecond,
			orDash(m.EnvoyMicros, 0), orDash(m.CPUMicros, 0), orDash(m.StoreMicros, 0), alone, row.CPU.Median, orDash(m.P50Micros, 0), orDash(m.P99Micros, 0))
	}
	if len(r.Latencies) > 0 {
		b.WriteString("\n| open loop, share of capacity | request | server | due a second | p50 µs | p99 µs |\n|---|---|---|---|---|---|\n")
	}
	for _, l := range r.Latencies {
		fmt.Fprintf(&b, "| %.0f %% | %s | %s | %.0f | %.0f | %.0f |\n", 100*l.Share, l.Shape, l.Server, l.PerSecond, l.Median.P50Micros, l.Median.P99Micros)
	}
	return b.String()
}
