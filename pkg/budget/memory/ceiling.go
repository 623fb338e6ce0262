package memory

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limit is one memory limit that was found.
type Limit struct {
	Source Source
	Bytes  int64
	Where  string // the file or setting it was read from
}

// Ceiling is every memory limit known for the protected process. It is a value: reading again gives another one.
type Ceiling struct {
	Limits   []Limit // tightest first, the cgroup before others of the same size; only real limits, none at or over physical memory
	Physical int64   // memory of the machine in bytes, 0 = unknown
	Problems []error // what could not be read or was passed over

	unread []error // those of them because of which a limit may be missing
	known  bool    // every limit was read, now or before

	root     string
	hostFile string
	cgroup   cgroup
	levels   []level // the cgroups that have a limit of their own, deepest first
	foreign  bool    // the cgroup is this process's own, while another one is protected: its limits do not count
}

// ReadCeiling collects the limits of the protected process. What cannot be read is left out and stands in Problems. No limit
// at all is a valid answer; that a limit could not be read is what Err reports.
//
// The protected process is this one unless settings say otherwise. ProtectedMemory, RuntimeLimit and CgroupPID speak of
// another one, and so the limits of this process are not mixed with them: this process's GOMEMLIMIT counts when none of
// the three is set and the cgroup that is read is its own, and its cgroup when it is not ProtectedMemory alone that describes
// the other one. A ProtectedMemory of nearly the machine's memory is what the downward API gives for a container without a
// limit, and counts as the machine's. It is what a container had when this process started: where a limit of the named process
// can be read, that one counts instead, so that a resize upwards is followed too.
func ReadCeiling(s BudgetSettings, env func(string) string) Ceiling { return Ceiling{}.Again(s, env) }

// Again reads the limits as ReadCeiling does. What cannot be read stays as it is in c: an unknown limit must not become a
// large one.
func (c Ceiling) Again(s BudgetSettings, env func(string) string) Ceiling {
	return c.again(s, env, s.ProtectedMemory == nil && !s.NamesProcess())
}

// again is Again; own says that what is read is this process's own cgroup.
func (c Ceiling) again(s BudgetSettings, env func(string) string, own bool) Ceiling {
	last := c
	c = Ceiling{root: filepath.Clean(cmp.Or(s.CgroupRoot, "/"))}
	c.readHost(last, filepath.Join(c.root, "proc", "meminfo"), "/proc/meminfo")
	if s.RuntimeLimit != nil {
		c.add(Limit{SourceMemoryLimit, int64(*s.RuntimeLimit), "runtimeLimit"})
	} else if own {
		limit, err := parseMemLimit(env("GOMEMLIMIT"))
		c.Problems = appendError(c.Problems, err)
		c.add(Limit{SourceMemoryLimit, limit, "GOMEMLIMIT"})
	}
	c.foreign = s.ProtectedMemory != nil && s.CgroupPID == 0 && c.root == "/"
	c.readCgroup(s, last)
	if measured := s.NamesProcess() && len(c.levels) > 0; s.ProtectedMemory != nil && !measured {
		c.addStated(int64(*s.ProtectedMemory))
	}
	c.known = len(c.unread) == 0 || last.known
	slices.SortStableFunc(c.Limits, func(a, b Limit) int {
		if order := cmp.Compare(a.Bytes, b.Bytes); order != 0 {
			return order
		}
		return cmp.Compare(tieRank(a), tieRank(b))
	})
	return c
}

// Err reports that a limit could not be read, although there may be one: a file is there and cannot be read, or the process
// or root that the settings name cannot be found.
func (c Ceiling) Err() error { return errors.Join(c.unread...) }

// nodeShare is the share of the machine's memory from which a stated limit is taken for the machine's own.
const nodeShare = 0.8

// addStated takes the limit that the downward API gives.
func (c *Ceiling) addStated(bytes int64) {
	if c.Physical > 0 && float64(bytes) >= nodeShare*float64(c.Physical) && !c.unlimited(bytes) {
		c.add(Limit{SourceHost, bytes, "protectedMemory, which is nearly the machine's"})
		return
	}
	c.add(Limit{SourceDownwardAPI, bytes, "protectedMemory"})
}

func tieRank(l Limit) int {
	if l.Source == SourceCgroup {
		return 0
	}
	return 1
}

// readHost takes the machine's memory from the first of the paths that can be read: that under root, else this process's own
// view, since containers share the kernel.
func (c *Ceiling) readHost(last Ceiling, paths ...string) {
	var failed []error
	for _, path := range slices.Compact(paths) {
		total, err := readFile(path, parseMemTotal)
		if err == nil {
			c.Physical, c.hostFile = total, path
			return
		}
		failed = append(failed, err)
	}
	c.Physical, c.hostFile = last.Physical, last.hostFile
	c.missing(failed)
}

// readCgroup finds the cgroup and reads the limits on the way to the root: each of them bounds the process.
func (c *Ceiling) readCgroup(s BudgetSettings, last Ceiling) {
	found, problems, unread := findCgroup(c.root, s.CgroupPID)
	c.Problems = append(c.Problems, problems...)
	if s.NamesProcess() && found.version == 0 {
		reasons := append(append(unread, problems...), os.ErrNotExist)
		unread = append(unread, fmt.Errorf("no memory cgroup of the process named by bytes.budget.cgroupRoot %s and cgroupPid %d: %w",
			c.root, s.CgroupPID, reasons[0]))
	}
	levels, failed := readLevels(found)
	unread = append(unread, failed...)
	if len(unread) > 0 && last.known {
		found, levels = last.cgroup, last.levels
	}
	c.cgroup = found
	for _, l := range levels {
		l.max, l.high = c.enforced(l.max), c.enforced(l.high)
		if l.max.Bytes > 0 || l.high.Bytes > 0 {
			c.levels = append(c.levels, l)
		}
	}
	if c.foreign { // it is not this cgroup that limits the protected process
		c.Problems = append(c.Problems, unread...)
		return
	}
	c.missing(unread)
}

// enforced adds a limit of a cgroup and returns it, the zero value where it limits nothing.
func (c *Ceiling) enforced(l Limit) Limit {
	if c.unlimited(l.Bytes) {
		return Limit{}
	}
	if !c.foreign {
		c.add(l)
	}
	return l
}

// add records a limit unless it limits nothing.
func (c *Ceiling) add(l Limit) {
	if !c.unlimited(l.Bytes) {
		c.Limits = append(c.Limits, l)
	}
}

// unlimited is true for a number of bytes that no process on this machine could reach, however it is spelled.
func (c *Ceiling) unlimited(bytes int64) bool {
	return bytes <= 0 || bytes >= noLimit || (c.Physical > 0 && bytes >= c.Physical)
}

// missing notes errors because of which a limit may be missing.
func (c *Ceiling) missing(unread []error) {
	c.Problems = append(c.Problems, unread...)
	c.unread = append(c.unread, unread...)
}

// tightest is the tightest limit; the machine's memory when there is none; Bytes 0 when not even that is known.
func (c Ceiling) tightest() Limit {
	if len(c.Limits) > 0 {
		return c.Limits[0]
	}
	return Limit{Source: SourceHost, Bytes: c.Physical, Where: c.hostFile}
}

// Budget derives the byte budget:
//
//	clamp(floor(ceiling × Fraction ÷ Amplification), Floor, Cap)
//
// or clamp(floor(Override), Floor, Cap). Without any known limit it is Floor.
func (c Ceiling) Budget(s BudgetSettings) Budget {
	if s.Override != nil {
		bytes := s.clamp(*s.Override)
		return Budget{Bytes: bytes, Source: SourceOverride, Ceiling: bytes, Where: "override"}
	}
	limit := c.tightest()
	if limit.Source == SourceHost && len(c.unread) > 0 && !c.known {
		limit = Limit{Source: SourceHost, Where: "a limit that cannot be read"} // which must not become a large one
	}
	return Budget{Bytes: s.derive(float64(limit.Bytes)), Source: limit.Source, Ceiling: limit.Bytes, Where: limit.Where}
}

// String is one line for the log: what bounds the process, what else was found and where, and what went wrong.
func (c Ceiling) String() string {
	var b strings.Builder
	limit := c.tightest()
	fmt.Fprintf(&b, "%s %d (%s)", limit.Source, limit.Bytes, limit.Where)
	for _, l := range c.Limits[min(1, len(c.Limits)):] {
		fmt.Fprintf(&b, ", %s %d (%s)", l.Source, l.Bytes, l.Where)
	}
	if len(c.Limits) > 0 && c.Physical > 0 {
		fmt.Fprintf(&b, ", %s %d (%s)", SourceHost, c.Physical, c.hostFile)
	}
	if c.cgroup.version == 0 {
		b.WriteString("; no memory cgroup")
	} else {
		fmt.Fprintf(&b, "; cgroup v%d %s", c.cgroup.version, c.cgroup.levels[0])
	}
	if c.foreign && c.cgroup.version != 0 {
		b.WriteString(" (this process's own, not the protected one's)")
	}
	for _, err := range c.Problems {
		fmt.Fprintf(&b, "; %v", err)
	}
	return b.String()
}
