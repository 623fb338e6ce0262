package budget

import (
	"io"
	"math"
	"path/filepath"
)

// sample is one look at the signals. A figure that could not be read is NaN, a counter -1.
type sample struct {
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
	c.sampleMemory(&s)
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
// by dropping clean file cache, for ever, in perfect health.
func (c Ceiling) sampleMemory(s *sample) {
	for _, l := range c.levels {
		used, err := readUsage(l.dir, c.cgroup.version)
		if err != nil {
			continue
		}
		if l.max > 0 {
			s.memory = larger(s.memory, ratio(used.workingSet(), l.max))
		}
		if l.high > 0 {
			s.high = larger(s.high, ratio(used.workingSet(), l.high))
		}
	}
	if len(c.levels) == 0 && c.Effective().Source == SourceHost && c.hostFile != "" {
		if available, err := readFile(c.hostFile, parseMemAvailable); err == nil && c.Physical > 0 {
			s.memory = ratio(c.Physical-available, c.Physical)
		}
	}
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

// readUsage reads a cgroup's memory use. The file cache is the pages on the file LRU lists; tmpfs, which "file" and
// "cache" also count, cannot be dropped and is not on them. Reclaimable slab is dentries and inodes, which only v2 counts
// apart. An unreadable memory.stat leaves both in.
func readUsage(dir string, version int) (usage, error) {
	name, prefix := "memory.current", ""
	if version == 1 {
		name, prefix = "memory.usage_in_bytes", "total_" // the own figures of a v1 cgroup leave its children out
	}
	current, err := readFile(filepath.Join(dir, name), parseCount)
	if err != nil {
		return usage{}, err
	}
	u := usage{current: current}
	_, _ = readFile(filepath.Join(dir, "memory.stat"), func(r io.Reader) (struct{}, error) {
		return struct{}{}, parseCounters(r, func(name string, value int64) {
			switch name {
			case prefix + "inactive_file", prefix + "active_file", prefix + "slab_reclaimable":
				u.reclaimable += value
			}
		})
	})
	return u, nil
}

func ratio(used, limit int64) float64 { return float64(used) / float64(limit) }

// larger is max for figures of which either may be unknown.
func larger(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}
