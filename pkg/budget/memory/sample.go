package memory

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// sample is one look at the signals. A figure that could not be read is NaN, a counter -1.
type sample struct {
	unread   error   // why the memory in use is unknown, although limits are known
	cgroup   string  // whose counters oom and oomKill are
	memory   float64 // working set ÷ hard limit of the same cgroup, the highest along the way to the root
	high     float64 // working set ÷ memory.high of the same cgroup, likewise
	stall    stall   // percent, both NaN when unknown
	oom      int64   // times the cgroup was out of memory, since it exists
	oomKills int64   // processes killed for it
}

// sample reads the signals of the cgroup that was found: the protected process's, or this process's own when only the
// former's limit is known (then it says how close the sidecar itself is to its end).
func (c Ceiling) sample(psi PSISettings) sample {
	s := sample{
		memory: math.NaN(), high: math.NaN(), stall: stall{some: math.NaN(), full: math.NaN()}, oom: -1, oomKills: -1,
	}
	s.unread = c.sampleMemory(&s)
	if c.cgroup.version != 0 {
		s.cgroup = c.cgroup.levels[0]
		c.sampleOOM(&s)
	}
	pressure := c.cgroup.pressure
	if pressure == "" && psi.HostWide {
		pressure = filepath.Join(c.root, "proc", "pressure", "memory")
	}
	if pressure != "" && !psi.Disabled {
		// Kernels without PSI, or started with psi=0, have the file but refuse to read it: no signal.
		if found, err := readFile(pressure, parsePSI); err == nil {
			s.stall = found
		}
	}
	return s
}

// sampleMemory compares each cgroup on the way to the root with the limits that the kernel enforces on that very cgroup.
// Stated limits are no measure of it: a runtime exceeds its heap limit in good health. Where nothing but the machine
// limits the process, it is the machine's available memory that counts.
//
// It is the working set in each pair, not the raw use: under memory.high the kernel keeps the raw use just below the limit
// by dropping clean file cache, for ever, in perfect health. Where the working set of one of them cannot be read the ratios
// are unknown: the highest of the others might claim a recovery. A cgroup that is gone is left out.
func (c Ceiling) sampleMemory(s *sample) error {
	if len(c.levels) == 0 {
		return c.sampleHost(s)
	}
	memory, high := math.NaN(), math.NaN()
	for _, l := range c.levels {
		used, there, err := readUsage(l.dir, c.cgroup.version)
		if err != nil {
			return err
		}
		if there && l.max.Bytes > 0 {
			memory = larger(memory, ratio(used.workingSet(), l.max.Bytes))
		}
		if there && l.high.Bytes > 0 {
			high = larger(high, ratio(used.workingSet(), l.high.Bytes))
		}
	}
	s.memory, s.high = memory, high
	return nil
}

func (c Ceiling) sampleHost(s *sample) error {
	if c.tightest().Source != SourceHost || c.hostFile == "" || c.Physical == 0 {
		return nil
	}
	available, err := readFile(c.hostFile, parseMemAvailable)
	if err != nil {
		return err
	}
	s.memory = ratio(c.Physical-available, c.Physical)
	return nil
}

func (c Ceiling) sampleOOM(s *sample) {
	name := "memory.events"
	if c.cgroup.version == 1 {
		name = "memory.oom_control"
	}
	_, _ = readFile(filepath.Join(s.cgroup, name), func(r io.Reader) (struct{}, error) {
		return struct{}{}, parseCounters(r, func(name string, value int64) {
			switch name {
			case "oom":
				s.oom = value
			case "oom_kill":
				s.oomKills = value
			}
		})
	})
}

// usage is what a cgroup is charged for.
type usage struct{ current, reclaimable int64 }

// workingSet is what reclaim cannot take back at no cost: current use less file cache and reclaimable slab.
func (u usage) workingSet() int64 { return max(0, u.current-u.reclaimable) }

// readUsage reads a cgroup's memory use; there is false when the cgroup is gone. The file cache is the pages on the file LRU
// lists; tmpfs, which "file" and "cache" also count, cannot be dropped and is not on them. Reclaimable slab is dentries and
// inodes, which only v2 counts apart. Without all that the use is unknown: raw use is no measure of anything.
func readUsage(dir string, version int) (u usage, there bool, err error) {
	name, prefix := "memory.current", ""
	if version == 1 {
		name, prefix = "memory.usage_in_bytes", "total_" // the own figures of a v1 cgroup leave its children out
	}
	u.current, err = readFile(filepath.Join(dir, name), parseCount)
	if errors.Is(err, os.ErrNotExist) {
		return usage{}, false, nil
	}
	if err != nil {
		return usage{}, false, err
	}
	u.reclaimable, err = readFile(filepath.Join(dir, "memory.stat"), func(r io.Reader) (int64, error) {
		return parseReclaimable(r, prefix)
	})
	return u, true, err
}

// parseReclaimable reads from memory.stat how many bytes reclaim could take back at no cost. It needs both file LRU lists:
// without them a cut or empty file would make everything count as used.
func parseReclaimable(r io.Reader, prefix string) (int64, error) {
	var sum int64
	var inactive, active bool
	err := parseCounters(r, func(name string, value int64) {
		switch name {
		case prefix + "inactive_file":
			inactive = true
		case prefix + "active_file":
			active = true
		case prefix + "slab_reclaimable":
		default:
			return
		}
		sum += value
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading file cache: %w", err)
	case !inactive || !active:
		return 0, fmt.Errorf("reading file cache: no %sinactive_file and %sactive_file", prefix, prefix)
	}
	return sum, nil
}

func ratio(used, limit int64) float64 { return float64(used) / float64(limit) }

// larger is max for figures of which either may be unknown.
func larger(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}
