package lease_test

import (
	"strconv"
	"strings"
)

// statCalls reads how often a command was called from INFO commandstats.
func statCalls(info, command string) int {
	_, rest, found := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}
