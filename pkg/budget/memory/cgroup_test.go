package memory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// loop stands for a file that is there and cannot be read, nor looked at, by anybody: a link to itself.
const loop = "(loop)"

// noCache is memory.stat, of either version, of a cgroup without file cache.
const noCache = "inactive_file 0\nactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n"

// machine is a tree of files under a temporary root, of a machine with 8 GiB of physical memory.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	write(t, root, "proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          123 kB\n")
	for name, text := range files {
		write(t, root, name, text)
	}
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if text == loop {
		if err := os.Symlink(filepath.Base(path), path); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func noEnv(string) string { return "" }

// readUnder reads the ceiling of the machine under root with the default settings.
func readUnder(root string) Ceiling {
	s := DefaultBudgetSettings()
	s.CgroupRoot = root
	return ReadCeiling(s, noEnv)
}

// expectLimit checks the effective limit, and that it was read where it should be (a path under root).
func expectLimit(t *testing.T, c Ceiling, root string, source Source, bytes int64, where string) {
	t.Helper()
	got := c.tightest()
	if got.Source != source || got.Bytes != bytes {
		t.Errorf("effective limit = %s %d, want %s %d; found: %s", got.Source, got.Bytes, source, bytes, c)
	}
	if where != "" && got.Where != filepath.Join(root, where) {
		t.Errorf("limit was read from %s, want %s", got.Where, filepath.Join(root, where))
	}
}

func TestV1LimitSpellings(t *testing.T) {
	t.Parallel()
	unlimited := []string{
		"9223372036854771712", "9223372036854710272", "9223372036854775807", "18446744073709551615", "9223372036854000000",
		"99999999999999999999999999", "1152921504606846976", "-1", "-1\n", "0", "", "\n", "garbage", "-garbage", "12 MiB", "0x1000",
		"17179869184", // twice the memory of the machine
		"8589934592",  // exactly its memory
	}
	for _, text := range unlimited {
		root := machine(t, map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n",
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": text,
		})
		c := readUnder(root)
		expectLimit(t, c, root, SourceHost, 8*gib, "proc/meminfo")
		wantProblem := strings.Contains(text, "garbage") || text == "12 MiB" || text == "0x1000"
		if (len(c.Problems) > 0) != wantProblem {
			t.Errorf("limit %q: problems %v, want any: %v", text, c.Problems, wantProblem)
		}
	}
	for _, text := range []string{"536870912\n", "536870912"} {
		root := machine(t, map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n",
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes":     text,
			"sys/fs/cgroup/memory/docker/abc/memory.max_usage_in_bytes": "1000\n", // not a limit
		})
		expectLimit(t, readUnder(root), root, SourceCgroup, 512*mib, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes")
	}
}

func TestV2Limits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, max, high string
		source          Source
		bytes           int64
		where           string
	}{
		{"the literal max", "max\n", "max\n", SourceHost, 8 * gib, "proc/meminfo"},
		{"a limit", "268435456\n", "max\n", SourceCgroup, 256 * mib, "sys/fs/cgroup/memory.max"},
		{"high under max throttles first", "1073741824", "536870912", SourceCgroup, 512 * mib, "sys/fs/cgroup/memory.high"},
		{"high alone", "max", "536870912", SourceCgroup, 512 * mib, "sys/fs/cgroup/memory.high"},
		{"high over max", "536870912", "1073741824", SourceCgroup, 512 * mib, "sys/fs/cgroup/memory.max"},
		{"more than the machine has", "17179869184", "9223372036854771712", SourceHost, 8 * gib, "proc/meminfo"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := machine(t, map[string]string{
				"proc/self/cgroup":          "0::/\n",
				"sys/fs/cgroup/memory.max":  tt.max,
				"sys/fs/cgroup/memory.high": tt.high,
			})
			c := readUnder(root)
			expectLimit(t, c, root, tt.source, tt.bytes, tt.where)
			if len(c.Problems) > 0 {
				t.Errorf("problems %v, want none", c.Problems)
			}
		})
	}
}

const v1Mount = "33 24 0:25 / /sys/fs/cgroup/memory rw,relatime - cgroup none rw,memory\n"
const v2Mount = "30 24 0:24 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"

func TestWhereTheLimitIsFound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		files   map[string]string
		bytes   int64  // 0 = no limit
		where   string // file
		problem bool
	}{
		{"hybrid: v1 memory wins over the unified hierarchy", map[string]string{
			"proc/self/cgroup":    "11:memory:/x\n0::/system.slice/x.service\n",
			"proc/self/mountinfo": v1Mount + "34 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/unified/system.slice/x.service/cgroup.controllers": "",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":                    "314572800\n",
		}, 314572800, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", false},
		{"hybrid: the unified hierarchy is not mounted at all", map[string]string{
			"proc/self/cgroup":                             "0::/system.slice/x.service\n11:memory:/x\n",
			"proc/self/mountinfo":                          v1Mount,
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "314572800\n",
		}, 314572800, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", false},
		{"v1 memory line, but only v2 is mounted", map[string]string{
			"proc/self/cgroup":           "0::/y\n11:memory:/x\n",
			"proc/self/mountinfo":        v2Mount,
			"sys/fs/cgroup/y/memory.max": "314572800\n",
		}, 314572800, "sys/fs/cgroup/y/memory.max", false},
		{"v1 controllers mounted together", map[string]string{
			"proc/self/cgroup":           "4:cpu,memory,pids:/x\n1:name=memory:/wrong\n",
			"proc/self/mountinfo":        "33 24 0:25 / /cg rw - cgroup none rw,cpu,memory,pids\n",
			"cg/x/memory.limit_in_bytes": "314572800\n",
		}, 314572800, "cg/x/memory.limit_in_bytes", false},
		{"path leads out of the namespace", map[string]string{
			"proc/self/cgroup":         "0::/../../other.scope\n",
			"proc/self/mountinfo":      v2Mount,
			"sys/fs/cgroup/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/memory.max", true},
		{"path leads out of the namespace, no mountinfo", map[string]string{
			"proc/self/cgroup":         "0::/../../other.scope\n",
			"sys/fs/cgroup/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/memory.max", true},
		{"mount root is the cgroup itself", map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                        "33 24 0:25 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "200000000",
		}, 200000000, "sys/fs/cgroup/memory/memory.limit_in_bytes", false},
		{"mount root is above the cgroup", map[string]string{
			"proc/self/cgroup":                                 "4:memory:/docker/abc/inner\n",
			"proc/self/mountinfo":                              "33 24 0:25 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":       "400000000",
			"sys/fs/cgroup/memory/inner/memory.limit_in_bytes": "200000000",
		}, 200000000, "sys/fs/cgroup/memory/inner/memory.limit_in_bytes", false},
		{"mount root outside of the namespace, path below it", map[string]string{
			"proc/self/cgroup":               "0::/../peer/inner\n",
			"proc/self/mountinfo":            "33 24 0:25 /../peer /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/memory.max":       "400000000",
			"sys/fs/cgroup/inner/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/inner/memory.max", false},
		{"path beside the mount root", map[string]string{
			"proc/self/cgroup":                           "4:memory:/nomad/shared\n",
			"proc/self/mountinfo":                        "33 24 0:25 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "200000000",
		}, 200000000, "sys/fs/cgroup/memory/memory.limit_in_bytes", true},
		{"path beside the mount root, no limit there", map[string]string{
			"proc/self/cgroup":                           "4:memory:/nomad/shared\n",
			"proc/self/mountinfo":                        "33 24 0:25 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
		}, 0, "proc/meminfo", true},
		{"a name that only starts like the mount root", map[string]string{
			"proc/self/cgroup":                               "4:memory:/docker/abcdef\n",
			"proc/self/mountinfo":                            "33 24 0:25 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "200000000",
			"sys/fs/cgroup/memory/def/memory.limit_in_bytes": "1000000",
		}, 200000000, "sys/fs/cgroup/memory/memory.limit_in_bytes", true},
		{"removed cgroup: its parents still bound the process", map[string]string{
			"proc/self/cgroup":           "0::/a/b (deleted)\n",
			"proc/self/mountinfo":        v2Mount,
			"sys/fs/cgroup/memory.max":   "max",
			"sys/fs/cgroup/a/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/a/memory.max", true},
		{"mount point with an escaped space, two optional fields, any source", map[string]string{
			"proc/self/cgroup":    "0::/x\n",
			"proc/self/mountinfo": "broken line without separator / x y z\n36 35 0:28 / /my\\040cg rw master:1 shared:2 - cgroup2 what\\040ever rw\n",
			"my cg/x/memory.max":  "200000000",
		}, 200000000, "my cg/x/memory.max", false},
		{"colon and space in the path", map[string]string{
			"proc/self/cgroup":                 "0::/a:b/c d\n",
			"sys/fs/cgroup/a:b/c d/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/a:b/c d/memory.max", false},
		{"the tightest on the way to the root is a parent's", map[string]string{
			"proc/self/cgroup":                      "0::/pod/ctr/leaf\n",
			"proc/self/mountinfo":                   v2Mount,
			"sys/fs/cgroup/memory.max":              "max",
			"sys/fs/cgroup/pod/memory.max":          "200000000",
			"sys/fs/cgroup/pod/ctr/memory.max":      "400000000",
			"sys/fs/cgroup/pod/ctr/leaf/memory.max": "max",
		}, 200000000, "sys/fs/cgroup/pod/memory.max", false},
		{"a parent's memory.high", map[string]string{
			"proc/self/cgroup":                 "0::/pod/ctr\n",
			"proc/self/mountinfo":              v2Mount,
			"sys/fs/cgroup/pod/memory.high":    "200000000",
			"sys/fs/cgroup/pod/memory.max":     "300000000",
			"sys/fs/cgroup/pod/ctr/memory.max": "400000000",
		}, 200000000, "sys/fs/cgroup/pod/memory.high", false},
		{"v1: the kernel's figure covers parents that are not mounted", map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                        "33 24 0:25 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "400000000",
			"sys/fs/cgroup/memory/memory.stat":           "cache 1\nhierarchical_memory_limit 200000000\n",
		}, 200000000, "sys/fs/cgroup/memory/memory.stat", false},
		{"v1: the kernel's figure says unlimited in its own way", map[string]string{
			"proc/self/cgroup":                             "4:memory:/x\n",
			"proc/self/mountinfo":                          v1Mount,
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
			"sys/fs/cgroup/memory/x/memory.stat":           "hierarchical_memory_limit 9223372036854771712\n",
		}, 0, "proc/meminfo", false},
		{"a later mount at the same place hides the earlier", map[string]string{
			"proc/self/cgroup":             "0::/x/y\n",
			"proc/self/mountinfo":          v2Mount + "40 30 0:24 /x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/y/memory.max":   "200000000",
			"sys/fs/cgroup/x/y/memory.max": "100000000",
		}, 200000000, "sys/fs/cgroup/y/memory.max", false},
		{"nothing of the process is known but its cgroup files", map[string]string{
			"sys/fs/cgroup/memory.max": "200000000",
		}, 200000000, "sys/fs/cgroup/memory.max", true},
		{"no cgroups", map[string]string{}, 0, "proc/meminfo", true},
		{"cgroups without a limit", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount, "sys/fs/cgroup/cgroup.controllers": "memory\n",
		}, 0, "proc/meminfo", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := machine(t, tt.files)
			c := readUnder(root)
			if tt.bytes == 0 {
				expectLimit(t, c, root, SourceHost, 8*gib, tt.where)
			} else {
				expectLimit(t, c, root, SourceCgroup, tt.bytes, tt.where)
			}
			if (len(c.Problems) > 0) != tt.problem {
				t.Errorf("problems %v, want any: %v", c.Problems, tt.problem)
			}
			if strings.Contains(c.String(), "\n") {
				t.Errorf("the log line has several lines: %q", c)
			}
		})
	}
}

func TestCgroupOfAnotherProcess(t *testing.T) {
	t.Parallel()
	const peer = "33 24 0:25 /../peer /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
	own := map[string]string{ // what this container sees of itself; its limit must never be taken for the other's
		"proc/self/cgroup":         "0::/\n",
		"proc/self/mountinfo":      v2Mount,
		"sys/fs/cgroup/memory.max": "100000000",
	}
	tests := []struct {
		name  string
		files map[string]string
		bytes int64
		where string
	}{
		{"through its own mounts", map[string]string{
			"proc/42/cgroup":                        "0::/../peer\n",
			"proc/42/mountinfo":                     peer,
			"proc/42/root/sys/fs/cgroup/memory.max": "200000000",
		}, 200000000, "proc/42/root/sys/fs/cgroup/memory.max"},
		{"through the mounts of this process", map[string]string{
			"proc/42/cgroup":               "0::/ctr\n",
			"sys/fs/cgroup/ctr/memory.max": "200000000",
		}, 100000000, "sys/fs/cgroup/memory.max"}, // its parent is this process's cgroup, and tighter
		{"out of sight", map[string]string{
			"proc/42/cgroup": "0::/../peer\n",
		}, 0, ""},
		{"no such process", map[string]string{}, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := machine(t, own)
			for name, text := range tt.files {
				write(t, root, name, text)
			}
			s := DefaultBudgetSettings()
			s.CgroupRoot, s.CgroupPID = root, 42
			// This process's own runtime limit is none of the other's.
			c := ReadCeiling(s, func(string) string { return "64MiB" })
			if tt.bytes > 0 {
				expectLimit(t, c, root, SourceCgroup, tt.bytes, tt.where)
				return
			}
			expectLimit(t, c, root, SourceHost, 8*gib, "proc/meminfo")
			if len(c.Problems) == 0 {
				t.Errorf("nothing was said about the missing cgroup: %s", c)
			}
		})
	}
}
