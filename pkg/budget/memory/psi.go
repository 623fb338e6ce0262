package memory

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// stall is the share of the last ten seconds, in percent, in which some or all tasks waited for memory
// (Documentation/accounting/psi.rst).
type stall struct{ some, full float64 }

// parsePSI reads memory.pressure of a cgroup or /proc/pressure/memory.
func parsePSI(r io.Reader) (stall, error) {
	var s stall
	var some, full bool
	err := eachLine(r, func(line string) {
		kind, rest, _ := strings.Cut(line, " ")
		for field := range strings.FieldsSeq(rest) {
			text, found := strings.CutPrefix(field, "avg10=")
			if !found {
				continue
			}
			avg, err := strconv.ParseFloat(text, 64)
			if err != nil || !(avg >= 0 && avg <= 100) {
				continue
			}
			switch kind {
			case "some":
				s.some, some = avg, true
			case "full":
				s.full, full = avg, true
			}
		}
	})
	if err != nil {
		return stall{}, fmt.Errorf("reading pressure stall information: %w", err)
	}
	if !some || !full {
		return stall{}, fmt.Errorf("reading pressure stall information: no avg10 of some and full")
	}
	return s, nil
}
