package main

import (
	"fmt"
	"html"
	"strings"
)

// The parts of a bar, with their colours.
var parts = []struct {
	name, colour string
	of           func(figures) float64
}{
	{"Envoy", "#8a9bb4", func(f figures) float64 { return f.EnvoyMicros }},
	{"server", "#2f6fde", func(f figures) float64 { return f.CPUMicros }},
	{"Redis", "#d9534f", func(f figures) float64 { return f.StoreMicros }},
}

// svg draws the processor time of a request of one kind, a bar for each server. It is empty where nothing was measured.
func (r report) svg(s setting, shape string) string {
	const left, width, line, top = 190, 400, 26, 40
	var rows []row
	most := 0.0
	for _, row := range r.Rows {
		if row.setting == s && row.Shape == shape {
			rows = append(rows, row)
			most = max(most, row.Median.whole())
		}
	}
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	height := top + line*len(rows) + 34
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13" role="img" aria-label="Processor time of a request">`+"\n", left+width+70, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="10" y="22" font-weight="bold">Processor time of a request, µs (%s, %s)</text>`+"\n", html.EscapeString(shape), html.EscapeString(s.String()))
	for i, row := range rows {
		y := top + line*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, y+15, html.EscapeString(row.Server))
		x := float64(left)
		for _, p := range parts {
			w := p.of(row.Median) / most * width
			if w > 0 {
				fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="18" fill="%s"/>`, x, y+2, w, p.colour)
			}
			x += w
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%.0f</text>`+"\n", x+6, y+15, row.Median.whole())
	}
	for i, p := range parts {
		x, y := left+90*i, top+line*len(rows)+8
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`, x, y, p.colour, x+18, y+11, p.name)
	}
	b.WriteString("\n</svg>\n")
	return b.String()
}
