package memory

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// noLimit is the number of bytes from which a stated limit means "none" whatever the machine: kernels spell unlimited
// as the largest counter rounded down to their page size, so comparing with one value misses the others.
const noLimit = int64(1) << 60

// parseMemLimit reads the value of GOMEMLIMIT as the Go runtime does: decimal digits with an optional unit B, KiB, MiB,
// GiB or TiB, or "off". Zero means that there is no limit. What the runtime would refuse to start with is an error.
func parseMemLimit(text string) (int64, error) {
	if text == "" || text == "off" {
		return 0, nil
	}
	digits, unit := text, int64(1)
	if number, found := strings.CutSuffix(text, "B"); found {
		digits = number
		for i, suffix := range []string{"Ki", "Mi", "Gi", "Ti"} {
			if number, found := strings.CutSuffix(digits, suffix); found {
				digits, unit = number, int64(1)<<(10*(i+1))
				break
			}
		}
	}
	// ParseUint takes neither a sign nor spaces, as the runtime does not.
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("parsing memory limit %.40q: not a number of bytes with an optional unit B, KiB, MiB, GiB or TiB", text)
	}
	if high, low := bits.Mul64(n, uint64(unit)); high != 0 || low > math.MaxInt64 {
		return 0, fmt.Errorf("parsing memory limit %.40q: more than 63 bits", text)
	}
	if limit := int64(n) * unit; limit < noLimit {
		return limit, nil
	}
	return 0, nil
}

// parseLimitFile reads the text of memory.max, memory.high or memory.limit_in_bytes. Zero means no limit: "max", a
// negative or absurd number, nothing at all, and zero itself, which some runtimes write for "unset". Text that is no
// number is no limit either, but an error too, because somebody should look at it.
func parseLimitFile(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "max" {
		return 0, nil
	}
	digits, negative := strings.CutPrefix(text, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("parsing memory limit %.40q: not a number", text)
	}
	if negative || err != nil || n >= uint64(noLimit) {
		return 0, nil
	}
	return int64(n), nil
}
