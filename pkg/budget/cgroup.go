package budget

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroup is where a process's memory is accounted, found once and read again and again.
type cgroup struct {
	version  int      // 1 or 2; 0 = none was found
	levels   []string // directories from the process's own cgroup up to the mount point; never empty when found
	pressure string   // memory.pressure of its cgroup in the unified hierarchy, "" = none. v1 has no PSI of its own
}

// view is one way to see a process's cgroup mounts: its mountinfo, and the directory under which those mount points are
// reachable from here.
type view struct {
	mounts []mount
	tree   string
	// exact accepts only the process's very cgroup. The mount point stands in for a path that cannot be resolved where
	// it is the process's own mount (a cgroup namespace), but seen from another container it would be that one's cgroup.
	exact bool
}

// findCgroup looks for the memory cgroup of process pid (0 = self) under root, which holds proc/ and sys/fs/cgroup/ of
// the process. The v1 memory hierarchy wins where the process is in one that is mounted: on a hybrid machine the
// unified hierarchy has no memory controller. Problems are told and never fatal.
func findCgroup(root string, pid int) (cgroup, []error) {
	var problems []error
	self := filepath.Join(root, "proc", "self")
	proc := self
	if pid != 0 {
		proc = filepath.Join(root, "proc", strconv.Itoa(pid))
	}
	in, err := readFile(filepath.Join(proc, "cgroup"), parseMembership)
	if err != nil {
		problems = append(problems, err)
		if pid != 0 { // no guess: what is mounted here may be another process's
			return cgroup{}, problems
		}
		in = membership{v1: "/", hasV1: true, v2: "/", hasV2: true}
	}

	views, viewProblems := cgroupViews(root, proc, self, pid)
	problems = append(problems, viewProblems...)
	var found cgroup
	if in.hasV1 {
		found, err = locate(views, 1, in.v1)
		problems = appendError(problems, err)
	}
	if !in.hasV2 {
		return found, problems
	}
	unified, err := locate(views, 2, in.v2)
	if found.version == 0 {
		found = unified
		problems = appendError(problems, err)
	}
	if unified.version != 0 && !isTop(unified.levels[0]) {
		if path := filepath.Join(unified.levels[0], "memory.pressure"); exists(path) {
			found.pressure = path
		}
	}
	if found.version == 0 && pid != 0 {
		problems = append(problems, fmt.Errorf("cgroup of process %d (v1 %q, v2 %q) cannot be seen from here", pid, in.v1, in.v2))
	}
	return found, problems
}

// cgroupViews lists the views to try, best first. Another process's mount points are meant in its own mount namespace,
// which /proc/<pid>/root opens; the mounts of this process show it too when they hold its path.
func cgroupViews(root, proc, self string, pid int) ([]view, []error) {
	var views []view
	var problems []error
	if pid != 0 {
		// Needs the right to look into that process; without it the mounts seen from here have to do.
		if mounts, err := readFile(filepath.Join(proc, "mountinfo"), parseMounts); err == nil {
			views = append(views, view{mounts: mounts, tree: filepath.Join(proc, "root")})
		}
	}
	exact := pid != 0
	mounts, err := readFile(filepath.Join(self, "mountinfo"), parseMounts)
	if err == nil {
		views = append(views, view{mounts: mounts, tree: root, exact: exact})
	} else if !errors.Is(err, os.ErrNotExist) {
		problems = append(problems, err)
	}
	// Without usable mountinfo (a mounted root that has another layout, no proc at all) the customary places remain.
	customary := []mount{
		{version: 2, root: "/", point: "/sys/fs/cgroup/unified"},
		{version: 2, root: "/", point: "/sys/fs/cgroup"},
		{version: 1, root: "/", point: "/sys/fs/cgroup/memory"},
	}
	return append(views, view{mounts: customary, tree: root, exact: exact}), problems
}

// locate finds the cgroup at path in the given version's hierarchy. The first view in which path is below a mount, and
// exists, wins. Otherwise the mount point itself is used: with a cgroup namespace, or a mount of one subtree, it is
// what bounds the process; the error says that this is a guess.
func locate(views []view, version int, path string) (cgroup, error) {
	var guess cgroup
	for _, v := range views {
		for _, m := range slices.Backward(v.mounts) { // a later mount hides an earlier one at the same place
			if m.version != version {
				continue
			}
			point := filepath.Join(v.tree, m.point)
			inside, below := relative(m.root, path)
			levels := existingLevels(point, inside, version)
			if len(levels) == 0 {
				continue
			}
			if below && levels[0] == filepath.Join(append([]string{point}, inside...)...) {
				return cgroup{version: version, levels: levels}, nil
			}
			if guess.version == 0 && !v.exact {
				guess = cgroup{version: version, levels: levels}
			}
		}
	}
	if guess.version == 0 {
		return cgroup{}, nil
	}
	return guess, fmt.Errorf("cgroup v%d path %q is not below a mount seen here, reading %s instead", version, path, guess.levels[0])
}

// relative returns the names that lead from the mount's root cgroup to path. It is false when path is not below root,
// which ".." shows too: the kernel writes it for cgroups outside of the reader's namespace.
func relative(root, path string) ([]string, bool) {
	above, names := cgroupNames(root), cgroupNames(path)
	if len(names) < len(above) || !slices.Equal(above, names[:len(above)]) {
		return nil, false
	}
	names = names[len(above):]
	if slices.Contains(names, "..") {
		return nil, false
	}
	return names, true
}

// cgroupNames splits a path. It keeps "..", which path.Clean would resolve against a root that is not the top.
func cgroupNames(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// existingLevels returns the cgroup directories from names up to the mount point, deepest first, leaving out those that
// are no cgroups.
func existingLevels(point string, names []string, version int) []string {
	var levels []string
	for n := len(names); n >= 0; n-- {
		dir := filepath.Join(append([]string{point}, names[:n]...)...)
		if isCgroup(dir, version) {
			levels = append(levels, dir)
		}
	}
	return levels
}

// isCgroup tells a cgroup directory by its files: the root of the unified hierarchy has none of memory, and on hybrid
// machines /sys/fs/cgroup is a plain directory of mount points.
func isCgroup(dir string, version int) bool {
	names := []string{"memory.max", "memory.high", "memory.current", "cgroup.controllers"}
	if version == 1 {
		names = []string{"memory.limit_in_bytes", "memory.usage_in_bytes"}
	}
	return slices.ContainsFunc(names, func(name string) bool { return exists(filepath.Join(dir, name)) })
}

// isTop tells the top of the unified hierarchy, which has processes but no events. Its memory.pressure is the whole
// machine's: on hybrid machines everything may be in it.
func isTop(dir string) bool {
	return exists(filepath.Join(dir, "cgroup.procs")) && !exists(filepath.Join(dir, "cgroup.events"))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func appendError(errs []error, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, err)
}

// readFile opens a file and hands it to a parser.
func readFile[T any](path string, parse func(io.Reader) (T, error)) (T, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer f.Close()
	value, err := parse(f)
	if err != nil {
		return value, fmt.Errorf("%s: %w", path, err)
	}
	return value, nil
}
