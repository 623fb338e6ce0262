package budget

import (
	"cmp"
	"errors"
	"fmt"
	"io"
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

	root     string
	hostFile string
	cgroup   cgroup
	levels   []level // the cgroups that have a limit of their own, deepest first
	foreign  bool    // the cgroup is this process's own, while another one is protected: its limits do not count
}

// level is one cgroup on the way to the root that limits memory.
type level struct {
	dir  string
	max  int64 // memory.max, or the v1 limit; 0 = none
	high int64 // memory.high; 0 = none
}

// ReadCeiling collects the limits of the protected process. What cannot be read is left out and stands in Problems. No limit
// at all is a valid answer; that a limit could not be read is what Err reports.
//
// The protected process is this one unless settings say otherwise. ProtectedMemory, RuntimeLimit and CgroupPID speak of
// another one, and so the limits of this process are not mixed with them: this process's GOMEMLIMIT counts when none of
// the three is set and the cgroup that is read is its own, and its cgroup when it is not ProtectedMemory alone that describes
// the other one. A ProtectedMemory of nearly the machine's memory is what the downward API gives for a container without a
// limit, and counts as the machine's.
func ReadCeiling(s BudgetSettings, env func(string) string) Ceiling {
	return readCeiling(s, env, s.ProtectedMemory == nil && !s.NamesProcess())
}

// readCeiling is ReadCeiling; own says that what is read is this process's own cgroup.
func readCeiling(s BudgetSettings, env func(string) string, own bool) Ceiling {
	root := filepath.Clean(cmp.Or(s.CgroupRoot, "/"))
	c := Ceiling{root: root}
	c.readHost()
	if s.ProtectedMemory != nil {
		c.addStated(int64(*s.ProtectedMemory))
	}
	if s.RuntimeLimit != nil {
		c.add(SourceMemoryLimit, int64(*s.RuntimeLimit), "runtimeLimit")
	} else if own {
		limit, err := parseMemLimit(env("GOMEMLIMIT"))
		c.problem(err)
		c.add(SourceMemoryLimit, limit, "GOMEMLIMIT")
	}
	found, problems := findCgroup(root, s.CgroupPID)
	c.cgroup = found
	c.Problems = append(c.Problems, problems...)
	if s.NamesProcess() && found.version == 0 {
		c.unread = append(c.unread, fmt.Errorf("no memory cgroup of the process named by bytes.budget.cgroupRoot %s and cgroupPid %d: %w",
			root, s.CgroupPID, errors.Join(append(problems, os.ErrNotExist)...)))
	}
	c.foreign = s.ProtectedMemory != nil && s.CgroupPID == 0 && root == "/"
	c.readLevels()
	slices.SortStableFunc(c.Limits, func(a, b Limit) int {
		if order := cmp.Compare(a.Bytes, b.Bytes); order != 0 {
			return order
		}
		return cmp.Compare(tieRank(a), tieRank(b))
	})
	return c
}

// Err reports that a limit could not be read, although there may be one: the file is there and cannot be read, or the process
// or root that the settings name cannot be found. What was known before should stay in force then.
func (c Ceiling) Err() error { return errors.Join(c.unread...) }

// nodeShare is the share of the machine's memory from which a stated limit is taken for the machine's own.
const nodeShare = 0.8

// addStated takes the limit that the downward API gives.
func (c *Ceiling) addStated(bytes int64) {
	if c.Physical > 0 && float64(bytes) >= nodeShare*float64(c.Physical) && !c.unlimited(bytes) {
		c.add(SourceHost, bytes, "protectedMemory, which is nearly the machine's")
		return
	}
	c.add(SourceDownwardAPI, bytes, "protectedMemory")
}

func tieRank(l Limit) int {
	if l.Source == SourceCgroup {
		return 0
	}
	return 1
}

// readHost takes the machine's memory from root, else from this process's own view: containers share the kernel.
func (c *Ceiling) readHost() {
	paths := slices.Compact([]string{filepath.Join(c.root, "proc", "meminfo"), "/proc/meminfo"})
	var failed []error
	for _, path := range paths {
		total, err := readFile(path, parseMemTotal)
		if err == nil {
			c.Physical, c.hostFile = total, path
			return
		}
		failed = append(failed, err)
	}
	c.Problems = append(c.Problems, failed...)
}

// readLevels reads the limits of the cgroup and of all those above it: each of them bounds the process.
func (c *Ceiling) readLevels() {
	v1 := c.cgroup.version == 1
	for i, dir := range c.cgroup.levels {
		l := level{dir: dir}
		if v1 {
			l.max = c.readLimit(filepath.Join(dir, "memory.limit_in_bytes"))
		} else {
			l.max = c.readLimit(filepath.Join(dir, "memory.max"))
			// Above memory.high the kernel throttles and reclaims long before it kills: it is the limit to stay under.
			l.high = c.readLimit(filepath.Join(dir, "memory.high"))
		}
		if v1 && i == 0 {
			l.max = c.readHierarchical(filepath.Join(dir, "memory.stat"), l.max)
		}
		if l.max > 0 || l.high > 0 {
			c.levels = append(c.levels, l)
		}
	}
}

// readLimit reads one limit file, adds what it says and returns it, 0 for none.
func (c *Ceiling) readLimit(path string) int64 {
	text, err := readFile(path, readSmall)
	if errors.Is(err, os.ErrNotExist) { // the root cgroup has no limits
		return 0
	}
	if err == nil {
		var limit int64
		if limit, err = parseLimitFile(text); err == nil {
			return c.addCgroup(limit, path)
		}
		err = fmt.Errorf("%s: %w", path, err)
	}
	c.problem(err)
	c.unread = appendError(c.unread, err)
	return 0
}

// readHierarchical tightens a v1 limit by what the kernel itself computed over all ancestors, those outside of this
// mount included. (v2 has no such figure.)
func (c *Ceiling) readHierarchical(path string, limit int64) int64 {
	hierarchical, err := readFile(path, func(r io.Reader) (int64, error) {
		found := int64(0)
		err := parseCounters(r, func(name string, value int64) {
			if name == "hierarchical_memory_limit" {
				found = value
			}
		})
		return found, err
	})
	if err != nil || hierarchical <= 0 || (limit > 0 && hierarchical >= limit) {
		return limit
	}
	if found := c.addCgroup(hierarchical, path); found > 0 {
		return found
	}
	return limit
}

func (c *Ceiling) addCgroup(bytes int64, where string) int64 {
	if c.unlimited(bytes) {
		return 0
	}
	if !c.foreign {
		c.add(SourceCgroup, bytes, where)
	}
	return bytes
}

// add records a limit unless it limits nothing.
func (c *Ceiling) add(source Source, bytes int64, where string) {
	if !c.unlimited(bytes) {
		c.Limits = append(c.Limits, Limit{Source: source, Bytes: bytes, Where: where})
	}
}

// unlimited is true for a number of bytes that no process on this machine could reach, however it is spelled.
func (c *Ceiling) unlimited(bytes int64) bool {
	return bytes <= 0 || bytes >= noLimit || (c.Physical > 0 && bytes >= c.Physical)
}

func (c *Ceiling) problem(err error) { c.Problems = appendError(c.Problems, err) }

// Effective is the tightest limit; the machine's memory when there is none; Bytes 0 when not even that is known.
func (c Ceiling) Effective() Limit {
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
	limit := c.Effective()
	if limit.Source == SourceHost && len(c.unread) > 0 {
		limit = Limit{Source: SourceHost, Where: "a limit that cannot be read"} // which must not become a large one
	}
	return Budget{Bytes: s.derive(float64(limit.Bytes)), Source: limit.Source, Ceiling: limit.Bytes, Where: limit.Where}
}

// String is one line for the log: what bounds the process, what else was found and where, and what went wrong.
func (c Ceiling) String() string {
	var b strings.Builder
	tightest := c.Effective()
	fmt.Fprintf(&b, "%s %d (%s)", tightest.Source, tightest.Bytes, tightest.Where)
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

// readSmall reads a file of one value.
func readSmall(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, 4<<10))
	return string(text), err
}
