package budget

import (
	"io"
	"math"
	"path/filepath"
)

// sample is one look at the signals. A figure that could not be read is NaN, a counter -1.
type sample struct {
	cgroup   string  // whose counters oom and oomKill are
	memory   float64 // working set ÷ limit, the highest along the way to the root
	high     float64 // raw usage ÷ memory.high, the highest along the way to the root
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
	if c.cgroup.version != 0 {
		s.cgroup = c.cgroup.levels[0]
		c.sampleMemory(&s)
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

// sampleMemory compares the process's own cgroup with the ceiling, and each cgroup above it with its own limit, which
// counts all that lives in there.
func (c Ceiling) sampleMemory(s *sample) {
	own := c.cgroup.levels[0]
	if limit := c.Effective().Bytes; limit > 0 && !c.foreign {
		if used, err := readUsage(own, c.cgroup.version); err == nil {
			s.memory = ratio(used.workingSet(), limit)
		}
	}
	for _, l := range c.levels {
		used, err := readUsage(l.dir, c.cgroup.version)
		if err != nil {
			continue
		}
		if tightest := l.tightest(); l.dir != own || c.foreign {
			s.memory = larger(s.memory, ratio(used.workingSet(), tightest))
		}
		if l.high > 0 {
			// Raw: the kernel throttles on everything charged, file cache too.
			s.high = larger(s.high, ratio(used.current, l.high))
		}
	}
}

func (l level) tightest() int64 {
	if l.max == 0 || (l.high > 0 && l.high < l.max) {
		return l.high
	}
	return l.max
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
type usage struct{ current, fileCache int64 }

// workingSet is what reclaim cannot take back at no cost: current use less the file cache.
func (u usage) workingSet() int64 { return max(0, u.current-u.fileCache) }

// readUsage reads a cgroup's memory use. The file cache is the pages on the file LRU lists; tmpfs, which "file" and
// "cache" also count, cannot be dropped and is not on them. An unreadable memory.stat leaves the cache in.
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
			if name == prefix+"inactive_file" || name == prefix+"active_file" {
				u.fileCache += value
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
