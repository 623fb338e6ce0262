package memory

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// longestLine bounds one line of the files read here. Mount options of stacked overlay mounts run to tens of KiB.
const longestLine = 1 << 20

// membership is which cgroups a process is in, as /proc/<pid>/cgroup tells it.
type membership struct {
	v1    string // path in the v1 hierarchy of the memory controller
	hasV1 bool
	v2    string // path in the unified hierarchy
	hasV2 bool
}

// parseMembership reads /proc/<pid>/cgroup: lines of "id:controllers:path". A path may contain colons, so there are
// three fields whatever follows. Lines that do not have them are skipped.
func parseMembership(r io.Reader) (membership, error) {
	var m membership
	err := eachLine(r, func(line string) {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return
		}
		switch {
		case fields[0] == "0" && fields[1] == "":
			m.v2, m.hasV2 = fields[2], true
		case hasItem(fields[1], "memory"):
			m.v1, m.hasV1 = fields[2], true
		}
	})
	if err != nil {
		return m, fmt.Errorf("reading cgroup membership: %w", err)
	}
	return m, nil
}

// mount is one mounted cgroup hierarchy that can say something about memory.
type mount struct {
	version int    // 1 or 2
	root    string // the cgroup that is seen at the mount point
	point   string // where, in the mount namespace of the process
}

// parseMounts reads /proc/<pid>/mountinfo (proc_pid_mountinfo(5)) and returns the unified hierarchy's mounts and those
// of the v1 memory controller, in file order. The number of optional fields before the lone "-" varies; the source
// after it is free text and not looked at. Lines without that shape are skipped.
func parseMounts(r io.Reader) ([]mount, error) {
	var mounts []mount
	err := eachLine(r, func(line string) {
		fields := strings.Split(line, " ")
		const fixed = 6 // id, parent, major:minor, root, mount point, options
		separator := fixed
		for separator < len(fields) && fields[separator] != "-" {
			separator++
		}
		if separator+3 >= len(fields) {
			return
		}
		m := mount{root: unescapeMount(fields[3]), point: unescapeMount(fields[4])}
		switch fields[separator+1] {
		case "cgroup2":
			m.version = 2
		case "cgroup":
			if !hasItem(fields[separator+3], "memory") {
				return
			}
			m.version = 1
		default:
			return
		}
		if strings.HasPrefix(m.root, "/") && strings.HasPrefix(m.point, "/") {
			mounts = append(mounts, m)
		}
	})
	if err != nil {
		return mounts, fmt.Errorf("reading mountinfo: %w", err)
	}
	return mounts, nil
}

// unescapeMount undoes the octal escapes that the kernel writes for space, tab, newline and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseMemTotal reads the physical memory in bytes from /proc/meminfo.
func parseMemTotal(r io.Reader) (int64, error) { return parseMeminfo(r, "MemTotal:") }

// parseMemAvailable reads how much of it could be had without swapping, as the kernel estimates it.
func parseMemAvailable(r io.Reader) (int64, error) { return parseMeminfo(r, "MemAvailable:") }

func parseMeminfo(r io.Reader, name string) (int64, error) {
	found := int64(0)
	err := eachLine(r, func(line string) {
		fields := strings.Fields(line)
		if found == 0 && len(fields) >= 2 && fields[0] == name {
			// The unit is always kB and means 1024 bytes.
			if kib, err := strconv.ParseInt(fields[1], 10, 53); err == nil && kib > 0 {
				found = kib << 10
			}
		}
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading meminfo: %w", err)
	case found == 0:
		return 0, fmt.Errorf("reading meminfo: no %s", strings.TrimSuffix(name, ":"))
	}
	return found, nil
}

// parseCounters reads files of "name value" lines (memory.stat, memory.events, memory.oom_control) and hands on every
// pair with a non-negative number.
func parseCounters(r io.Reader, each func(name string, value int64)) error {
	return eachLine(r, func(line string) {
		name, text, found := strings.Cut(line, " ")
		if !found {
			return
		}
		if value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && value >= 0 {
			each(name, value)
		}
	})
}

func eachLine(r io.Reader, each func(line string)) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 4<<10), longestLine)
	for scanner.Scan() {
		each(scanner.Text())
	}
	return scanner.Err()
}

func hasItem(list, item string) bool {
	for entry := range strings.SplitSeq(list, ",") {
		if entry == item {
			return true
		}
	}
	return false
}

// parseCount reads a file of one number.
func parseCount(r io.Reader) (int64, error) {
	text, err := readSmall(r)
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || value < 0 {
		return 0, fmt.Errorf("%.40q is not a count", text)
	}
	return value, nil
}
