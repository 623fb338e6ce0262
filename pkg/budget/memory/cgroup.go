package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	err   error // why mounts are missing
}

// findCgroup looks for the memory cgroup of process pid (0 = self) under root, which holds proc/ and sys/fs/cgroup/ of
// the process. The v1 memory hierarchy wins where the process is in one that is mounted: on a hybrid machine the
// unified hierarchy has no memory controller. Problems are for people to know of; because of what was unread the cgroup, or
// one above it, may be another one.
func findCgroup(root string, pid int) (found cgroup, problems, unread []error) {
	self := filepath.Join(root, "proc", "self")
	proc := self
	if pid != 0 {
		proc = filepath.Join(root, "proc", strconv.Itoa(pid))
	}
	in, err := readFile(filepath.Join(proc, "cgroup"), parseMembership)
	switch {
	case err == nil:
	case pid != 0 || !errors.Is(err, os.ErrNotExist): // no guess: what is mounted here may be another process's
		return cgroup{}, nil, []error{err}
	default: // a mounted root without proc
		problems = append(problems, err)
		in = membership{v1: "/", hasV1: true, v2: "/", hasV2: true}
	}

	views := cgroupViews(root, proc, self, pid)
	var guess error
	if in.hasV1 {
		found, unread, guess = locate(views, 1, in.v1)
	}
	if in.hasV2 {
		unified, missed, guessed := locate(views, 2, in.v2)
		if found.version == 0 {
			found, unread, guess = unified, append(unread, missed...), guessed
		}
		pressure, err := pressureFile(unified)
		found.pressure = pressure
		problems = appendError(problems, err)
	}
	problems = appendError(problems, guess)
	if found.version == 0 && pid != 0 {
		problems = append(problems, fmt.Errorf("cgroup of process %d (v1 %q, v2 %q) cannot be seen from here", pid, in.v1, in.v2))
	}
	return found, problems, unread
}

// pressureFile is the file of the stalls of a cgroup in the unified hierarchy, empty where there is none. At the top of the
// hierarchy they are the whole machine's.
func pressureFile(unified cgroup) (string, error) {
	if unified.version == 0 {
		return "", nil
	}
	path := filepath.Join(unified.levels[0], "memory.pressure")
	there, err := exists(path)
	if err != nil || !there {
		return "", err
	}
	top, err := isTop(unified.levels[0])
	if err != nil || top {
		return "", err
	}
	return path, nil
}

// cgroupViews lists the views to try, best first. Another process's mount points are meant in its own mount namespace,
// which /proc/<pid>/root opens; the mounts of this process show it too when they hold its path.
func cgroupViews(root, proc, self string, pid int) []view {
	var views []view
	if pid != 0 {
		// Needs the right to look into that process; without it the mounts seen from here have to do.
		mounts, err := readFile(filepath.Join(proc, "mountinfo"), parseMounts)
		views = append(views, view{mounts: mounts, tree: filepath.Join(proc, "root"), err: err})
	}
	exact := pid != 0
	mounts, err := readFile(filepath.Join(self, "mountinfo"), parseMounts)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	views = append(views, view{mounts: mounts, tree: root, exact: exact, err: err})
	// Without usable mountinfo (a mounted root that has another layout, no proc at all) the customary places remain.
	customary := []mount{
		{version: 2, root: "/", point: "/sys/fs/cgroup/unified"},
		{version: 2, root: "/", point: "/sys/fs/cgroup"},
		{version: 1, root: "/", point: "/sys/fs/cgroup/memory"},
	}
	return append(views, view{mounts: customary, tree: root, exact: exact})
}

// locate finds the cgroup at path in the given version's hierarchy. The first view in which path is below a mount, and
// exists, wins. Otherwise the mount point itself is used: with a cgroup namespace, or a mount of one subtree, it is
// what bounds the process; then guessed says so. Because of what is unread, that may be wrong or incomplete.
func locate(views []view, version int, path string) (found cgroup, unread []error, guessed error) {
	for _, v := range views {
		unread = appendError(unread, v.err)
		for _, m := range slices.Backward(v.mounts) { // a later mount hides an earlier one at the same place
			if m.version != version {
				continue
			}
			point := filepath.Join(v.tree, m.point)
			inside, below := relative(m.root, path)
			levels, errs := existingLevels(point, inside, version)
			if len(levels) > 0 && below && levels[0] == filepath.Join(append([]string{point}, inside...)...) {
				return cgroup{version: version, levels: levels}, errs, nil
			}
			unread = append(unread, errs...)
			if len(levels) > 0 && found.version == 0 && !v.exact {
				found = cgroup{version: version, levels: levels}
			}
		}
	}
	if found.version != 0 {
		guessed = fmt.Errorf("cgroup v%d path %q is not below a mount seen here, reading %s instead", version, path, found.levels[0])
	}
	return found, unread, guessed
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
// are no cgroups, and errors for those of which that cannot be said.
func existingLevels(point string, names []string, version int) (levels []string, unread []error) {
	for n := len(names); n >= 0; n-- {
		dir := filepath.Join(append([]string{point}, names[:n]...)...)
		there, err := isCgroup(dir, version)
		if there {
			levels = append(levels, dir)
		}
		unread = appendError(unread, err)
	}
	return levels, unread
}

// isCgroup recognises a cgroup directory by its files: the root of the unified hierarchy has none of memory, and on hybrid
// machines /sys/fs/cgroup is a plain directory of mount points.
func isCgroup(dir string, version int) (bool, error) {
	names := []string{"memory.max", "memory.high", "memory.current", "cgroup.controllers"}
	if version == 1 {
		names = []string{"memory.limit_in_bytes", "memory.usage_in_bytes"}
	}
	for _, name := range names {
		if there, err := exists(filepath.Join(dir, name)); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// isTop recognises the top of the unified hierarchy, which has processes but no events.
func isTop(dir string) (bool, error) {
	processes, err := exists(filepath.Join(dir, "cgroup.procs"))
	if err != nil || !processes {
		return false, err
	}
	events, err := exists(filepath.Join(dir, "cgroup.events"))
	return !events, err
}

// exists reports whether there is such a file. That it cannot be said is an error.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	}
	return false, err
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
