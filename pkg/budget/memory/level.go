package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// level is one cgroup on the way to the root, and what the kernel enforces on it.
type level struct {
	dir  string
	max  Limit // memory.max, or the v1 limit; Bytes 0 = none
	high Limit // memory.high; Bytes 0 = none
}

// readLevels reads the limits of the cgroup and of all those above it, and returns what could not be read. A file that is not
// there limits nothing.
func readLevels(c cgroup) (levels []level, unread []error) {
	for i, dir := range c.levels {
		l, errs := readLevel(dir, c.version, i == 0)
		levels, unread = append(levels, l), append(unread, errs...)
	}
	return levels, unread
}

func readLevel(dir string, version int, deepest bool) (l level, unread []error) {
	l.dir = dir
	read := func(limit *Limit, name string, parse func(io.Reader) (int64, error)) {
		path := filepath.Join(dir, name)
		bytes, err := readFile(path, parse)
		switch {
		case errors.Is(err, os.ErrNotExist): // the root cgroup has no limits
		case err != nil:
			unread = append(unread, err)
		case bytes > 0 && (limit.Bytes == 0 || bytes < limit.Bytes):
			*limit = Limit{Source: SourceCgroup, Bytes: bytes, Where: path}
		}
	}
	if version == 1 {
		read(&l.max, "memory.limit_in_bytes", parseLimit)
		if deepest {
			read(&l.max, "memory.stat", parseHierarchicalLimit)
		}
		return l, unread
	}
	read(&l.max, "memory.max", parseLimit)
	// Above memory.high the kernel throttles and reclaims long before it kills: it is the limit to stay under.
	read(&l.high, "memory.high", parseLimit)
	return l, unread
}

// parseLimit reads a file of one limit.
func parseLimit(r io.Reader) (int64, error) {
	text, err := readSmall(r)
	if err != nil {
		return 0, err
	}
	return parseLimitFile(text)
}

// parseHierarchicalLimit reads from a v1 cgroup's memory.stat what the kernel itself computed over all ancestors, those
// outside of this mount included. (v2 has no such figure.)
func parseHierarchicalLimit(r io.Reader) (int64, error) {
	found := int64(0)
	err := parseCounters(r, func(name string, value int64) {
		if name == "hierarchical_memory_limit" {
			found = value
		}
	})
	if err != nil {
		return 0, fmt.Errorf("reading the hierarchical limit: %w", err)
	}
	return found, nil
}

// readSmall reads a file of one value.
func readSmall(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, 4<<10))
	return string(text), err
}
