// Package usage reads from the outside what a process has used: its processor time from /proc, its allocations from the
// heap profile that Go servers offer.
package usage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of the times in /proc: USER_HZ, 100 on every architecture Go runs on.
const tick = 10 * time.Millisecond

// CPU returns the processor time of a process so far, user and system.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return parseStat(text)
}

// parseStat adds utime and stime, the fields 14 and 15. The second field, the name in parentheses, may hold anything.
func parseStat(text []byte) (time.Duration, error) {
	const utime, stime = 14 - 3, 15 - 3
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= stime {
		return 0, fmt.Errorf("processor time: %q has too few fields", text)
	}
	user, err1 := strconv.ParseInt(fields[utime], 10, 64)
	system, err2 := strconv.ParseInt(fields[stime], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return time.Duration(user+system) * tick, nil
}

// Allocations are those of a process so far.
type Allocations struct {
	Objects, Bytes int64
}

// Allocated asks the process whose /debug/pprof/ is at address, host:port.
func Allocated(ctx context.Context, address string) (Allocations, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/debug/pprof/allocs?debug=1", nil)
	if err != nil {
		return Allocations{}, fmt.Errorf("allocations: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Allocations{}, fmt.Errorf("allocations: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Allocations{}, fmt.Errorf("allocations: %s from %s", response.Status, request.URL)
	}
	return parseProfile(bufio.NewScanner(response.Body))
}

// parseProfile finds the counters of runtime.MemStats that end a heap profile in text form.
func parseProfile(lines *bufio.Scanner) (Allocations, error) {
	var a Allocations
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "# "), " = ")
		if !ok {
			continue
		}
		var into *int64
		switch name {
		case "TotalAlloc":
			into = &a.Bytes
		case "Mallocs":
			into = &a.Objects
		default:
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return Allocations{}, fmt.Errorf("allocations: %w", err)
		}
		*into = n
	}
	if err := lines.Err(); err != nil {
		return Allocations{}, fmt.Errorf("allocations: %w", err)
	}
	if a.Objects == 0 {
		return Allocations{}, errors.New("allocations: the profile has no counters")
	}
	return a, nil
}
