// Package usage reads from the outside what a process has used: its processor time and memory from the kernel, its allocations
// from the heap profile that Go servers offer.
package usage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the processor time of a process so far, of all its threads, those that have ended included.
func CPU(pid int) (time.Duration, error) {
	const processClock = 2 // CPUCLOCK_SCHED: clock_getcpuclockid(3) makes the number so
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &spent); err != nil { //nolint:gosec // as the kernel reads it
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(spent.Nano()), nil
}

// Resident returns the memory of a process that is in RAM, in bytes.
func Resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory: %w", err)
	}
	return parseStatus(text)
}

// parseStatus finds VmRSS, which is in kB.
func parseStatus(text []byte) (int64, error) {
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory: %w", err)
			}
			return kilobytes << 10, nil
		}
	}
	return 0, errors.New("memory: the kernel names no VmRSS")
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
