package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// hierarchy is a mounted cgroup hierarchy: all controllers of version 2, or some of version 1.
type hierarchy struct {
	path        string
	controllers []string
	v2          bool
}

// cgroups finds the hierarchies that the node uses. It fails when the controllers that pods need are not there.
func cgroups() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var v1, v2 []hierarchy
	var have []string
	for line := range strings.Lines(string(mounts)) {
		field := strings.Fields(line)
		if len(field) < 4 {
			continue
		}
		switch field[2] {
		case "cgroup":
			h := hierarchy{path: field[1], controllers: strings.Split(field[3], ",")}
			v1, have = append(v1, h), append(have, h.controllers...)
		case "cgroup2":
			text, err := os.ReadFile(filepath.Join(field[1], "cgroup.controllers"))
			if h := (hierarchy{path: field[1], controllers: strings.Fields(string(text)), v2: true}); err == nil && len(h.controllers) > 0 {
				v2, have = append(v2, h), append(have, h.controllers...)
			}
		}
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(have, c) {
			return nil, fmt.Errorf("the cgroup controller %s, mounted (version 1 or 2)", c)
		}
	}
	if len(v1) > 0 {
		return v1, nil
	}
	return v2, nil
}

// makeCgroups makes the node's own cgroup, below which all pods are.
func makeCgroups() error {
	all, err := cgroups()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.path, nodeCgroup)
		if h.v2 {
			if err := enable(h.path, h.controllers); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the node's cgroup: %w", err)
		}
		switch {
		case h.v2:
			err = enable(dir, h.controllers)
		case slices.Contains(h.controllers, "cpuset"):
			err = errors.Join(copyFile(h.path, dir, "cpuset.cpus"), copyFile(h.path, dir, "cpuset.mems"))
		}
		if err != nil {
			return fmt.Errorf("set up %s: %w", dir, err)
		}
	}
	return nil
}

// enable turns controllers on for the children of a cgroup of version 2.
func enable(dir string, controllers []string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(controllers, " +")), 0o600)
}

func copyFile(from, to, name string) error {
	text, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, name), text, 0o600) //nolint:gosec // a path of /proc/self/mounts
}

// removeCgroups removes the node's cgroup and everything below, which takes until the last process has gone.
func removeCgroups() error {
	all, err := cgroups()
	if err != nil {
		return err
	}
	// On machines with both versions the runtime makes one in the hierarchy without controllers too.
	more, _ := filepath.Glob("/sys/fs/cgroup/*/" + nodeCgroup)
	for _, dir := range more {
		all = append(all, hierarchy{path: filepath.Dir(dir)})
	}
	for range 50 {
		err = nil
		for _, h := range all {
			err = errors.Join(err, removeTree(filepath.Join(h.path, nodeCgroup)))
		}
		if err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// removeTree removes a cgroup from its leaves up.
func removeTree(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, path := range slices.Backward(all) {
		if removeErr := os.Remove(path); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
