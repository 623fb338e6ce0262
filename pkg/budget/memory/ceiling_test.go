package memory

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/budget/size"
)

func bytesOf(n int64) *size.Bytes { s := size.Bytes(n); return &s }

func TestBudgetFromCeiling(t *testing.T) {
	t.Parallel()
	cgroup := func(bytes int64) Limit { return Limit{Source: SourceCgroup, Bytes: bytes} }
	runtime := func(bytes int64) Limit { return Limit{Source: SourceMemoryLimit, Bytes: bytes} }
	tests := []struct {
		name    string
		limits  []Limit // tightest first
		host    int64
		source  Source
		ceiling int64
		bytes   int64
	}{
		{"4 GiB limit", []Limit{runtime(4 * gib)}, 0, SourceMemoryLimit, 4 * gib, 134217728},
		{"512 MiB cgroup under 4 GiB", []Limit{cgroup(512 * mib), runtime(4 * gib)}, 0, SourceCgroup, 512 * mib, 16777216},
		{"1 GiB limit under 16 GiB cgroup", []Limit{runtime(gib), cgroup(16 * gib)}, 0, SourceMemoryLimit, gib, 33554432},
		{"256 MiB both", []Limit{cgroup(256 * mib), runtime(256 * mib)}, 0, SourceCgroup, 256 * mib, 8388608},
		{"less than the floor allows", []Limit{cgroup(64 * mib)}, 0, SourceCgroup, 64 * mib, 8388608},
		{"1024 GiB", []Limit{runtime(1024 * gib)}, 0, SourceMemoryLimit, 1024 * gib, 2147483648},
		{"odd sizes are floored", []Limit{cgroup(1000000007)}, 0, SourceCgroup, 1000000007, 31250000},
		{"only the machine", nil, 8 * gib, SourceHost, 8 * gib, 268435456},
		{"nothing is known", nil, 0, SourceHost, 0, 8388608},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := Ceiling{Limits: tt.limits, Physical: tt.host}.Budget(DefaultBudgetSettings())
			if got.Bytes != tt.bytes || got.Source != tt.source || got.Ceiling != tt.ceiling {
				t.Errorf("budget = %d from %s %d, want %d from %s %d",
					got.Bytes, got.Source, got.Ceiling, tt.bytes, tt.source, tt.ceiling)
			}
		})
	}
}

func TestBudgetOverride(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		override float64
		bytes    int64
	}{
		{134217728, 128 * mib}, {134217728.9, 128 * mib}, {1024, 8 * mib}, {4 * gib, 2 * gib}, {1e300, 2 * gib},
		{math.NaN(), 8 * mib}, {math.Inf(1), 2 * gib}, {-5, 8 * mib},
	} {
		s := DefaultBudgetSettings()
		s.Override = &tt.override
		got := Ceiling{Physical: 4 * gib}.Budget(s)
		want := Budget{Bytes: tt.bytes, Source: SourceOverride, Ceiling: tt.bytes, Where: "override"}
		if got != want {
			t.Errorf("override %v: budget = %+v, want %+v", tt.override, got, want)
		}
	}
	s := DefaultBudgetSettings()
	if s.Fraction = math.NaN(); s.derive(4*gib) != 8*mib {
		t.Errorf("a budget that is no number = %d, want the floor, %d", s.derive(4*gib), 8*mib)
	}
}

func TestCeilingSources(t *testing.T) {
	t.Parallel()
	cgroup := func(limit string) map[string]string {
		return map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": limit}
	}
	tests := []struct {
		name       string
		files      map[string]string
		goMemLimit string
		protected  *size.Bytes
		runtime    *size.Bytes
		source     Source
		bytes      int64
		problems   int
	}{
		{name: "the runtime's limit is tighter", files: cgroup("4294967296"), goMemLimit: "1GiB", source: SourceMemoryLimit, bytes: gib},
		{name: "the cgroup's limit is tighter", files: cgroup("536870912"), goMemLimit: "1GiB", source: SourceCgroup, bytes: 512 * mib},
		{name: "a tie goes to the cgroup", files: cgroup("1073741824"), goMemLimit: "1GiB", source: SourceCgroup, bytes: gib},
		{name: "GOMEMLIMIT off", files: cgroup("max"), goMemLimit: "off", source: SourceHost, bytes: 8 * gib},
		{name: "GOMEMLIMIT over the machine's memory", files: cgroup("max"), goMemLimit: "1TiB", source: SourceHost, bytes: 8 * gib},
		{name: "GOMEMLIMIT is garbage", files: cgroup("1073741824"), goMemLimit: "1 GB", source: SourceCgroup, bytes: gib, problems: 1},
		{name: "the protected container's limit", files: cgroup("max"), protected: bytesOf(gib), source: SourceDownwardAPI, bytes: gib},
		{name: "a container without limit gets the node's memory", files: cgroup("max"), protected: bytesOf(8 * gib), source: SourceHost, bytes: 8 * gib},
		{name: "a limit of nearly the machine is the node's allocatable", files: cgroup("max"), protected: bytesOf(7 * gib), source: SourceHost, bytes: 7 * gib},
		{name: "a tie of downward API and cgroup", files: cgroup("1073741824"), protected: bytesOf(gib), source: SourceCgroup, bytes: gib},
		{name: "this process's GOMEMLIMIT is not another one's", files: cgroup("max"), protected: bytesOf(gib), goMemLimit: "64MiB", source: SourceDownwardAPI, bytes: gib},
		{name: "a stated runtime limit stands for GOMEMLIMIT", files: cgroup("max"), runtime: bytesOf(gib), goMemLimit: "64MiB", source: SourceMemoryLimit, bytes: gib},
		{name: "runtime limit of the protected container", files: cgroup("max"), runtime: bytesOf(512 * mib), protected: bytesOf(gib), source: SourceMemoryLimit, bytes: 512 * mib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := DefaultBudgetSettings()
			s.CgroupRoot, s.ProtectedMemory, s.RuntimeLimit = machine(t, tt.files), tt.protected, tt.runtime
			c := Ceiling{}.again(s, func(name string) string {
				if name != "GOMEMLIMIT" {
					t.Errorf("environment variable %s was read", name)
				}
				return tt.goMemLimit
			}, tt.protected == nil)
			expectLimit(t, c, "", tt.source, tt.bytes, "")
			if len(c.Problems) != tt.problems {
				t.Errorf("problems %v, want %d", c.Problems, tt.problems)
			}
		})
	}
}

// A sidecar that is told the protected container's limit, and sees only its own cgroup, must not take its own limit for
// the other's; its own use is then measured against its own limit.
func TestOwnCgroupIsNotTheProtectedOne(t *testing.T) {
	t.Parallel()
	root := machine(t, map[string]string{
		"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728", "sys/fs/cgroup/memory.current": "67108864",
		"sys/fs/cgroup/memory.stat": noCache,
	})
	c := Ceiling{root: root, foreign: true}
	c.add(Limit{SourceDownwardAPI, 4 * gib, "protectedMemory"})
	c.readCgroup(BudgetSettings{}, Ceiling{})
	expectLimit(t, c, "", SourceDownwardAPI, 4*gib, "")
	if got := c.sample(PSISettings{}).memory; got != .5 {
		t.Errorf("memory ratio = %v, want 0.5, this process's own", got)
	}
	if !strings.Contains(c.String(), "this process's own") {
		t.Errorf("the log line hides whose cgroup it is: %s", c)
	}
}

func TestCeilingLogLine(t *testing.T) {
	t.Parallel()
	root := machine(t, map[string]string{
		"proc/self/cgroup":         "0::/../x\n",
		"sys/fs/cgroup/memory.max": "1073741824",
	})
	s := DefaultBudgetSettings()
	s.CgroupRoot = root
	line := Ceiling{}.again(s, func(string) string { return "2GiB" }, true).String()
	for _, want := range []string{
		"cgroup 1073741824 (" + filepath.Join(root, "sys/fs/cgroup/memory.max") + ")",
		"memory_limit 2147483648 (GOMEMLIMIT)",
		"host 8589934592 (" + filepath.Join(root, "proc/meminfo") + ")",
		"cgroup v2 " + filepath.Join(root, "sys/fs/cgroup"),
		`path "/../x" is not below a mount seen here`,
	} {
		if !strings.Contains(line, want) {
			t.Errorf("the line lacks %q: %s", want, line)
		}
	}
}

func TestReadCeilingOfThisMachine(t *testing.T) {
	t.Parallel()
	c := ReadCeiling(DefaultBudgetSettings(), noEnv)
	t.Log(c)
	if b := c.Budget(DefaultBudgetSettings()); b.Bytes < 8*mib || b.Bytes > 2*gib {
		t.Errorf("budget = %d, want between 8 MiB and 2 GiB", b.Bytes)
	}
	t.Logf("%+v", c.sample(DefaultPressureSettings().PSI))
}

// TestForeignMemoryLimit: this process's GOMEMLIMIT says nothing about a process that is read under another root.
func TestForeignMemoryLimit(t *testing.T) {
	t.Parallel()
	s := DefaultBudgetSettings()
	s.CgroupRoot = machine(t, map[string]string{"sys/fs/cgroup/memory.max": "4294967296"})
	c := ReadCeiling(s, func(string) string { return "450MiB" })
	expectLimit(t, c, "", SourceCgroup, 4*gib, "")
}

// TestAnUnreadLimitIsNoLargeOne: what cannot be read is an error, and never stands for the machine's memory.
func TestAnUnreadLimitIsNoLargeOne(t *testing.T) {
	t.Parallel()
	pid := func(s *BudgetSettings) { s.CgroupPID = 42 }
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*BudgetSettings)
		unread bool
	}{
		"a membership that is a directory": {map[string]string{
			"proc/self/cgroup/x": "", "sys/fs/cgroup/memory.max": "max",
		}, nil, true},
		"mounts that are a directory": {map[string]string{
			"proc/self/cgroup": "0::/x\n", "proc/self/mountinfo/x": "", "sys/fs/cgroup/memory.max": "max",
		}, nil, true},
		"a cgroup that cannot be looked at": {map[string]string{
			"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/x/memory.max": loop,
		}, nil, true},
		"a parent that cannot be looked at": {map[string]string{
			"proc/self/cgroup": "0::/x/y\n", "sys/fs/cgroup/x/memory.max": loop, "sys/fs/cgroup/x/y/memory.max": "max",
		}, nil, true},
		"a parent's limit that is garbage": {map[string]string{
			"proc/self/cgroup": "0::/x/y\n", "sys/fs/cgroup/x/memory.high": "many", "sys/fs/cgroup/x/y/memory.max": "max",
		}, nil, true},
		"v1: a hierarchical limit that cannot be read": {map[string]string{
			"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
			"sys/fs/cgroup/memory/x/memory.stat": loop,
		}, nil, true},
		"mounts that cannot be read where none is needed": {map[string]string{
			"proc/self/cgroup": "0::/x\n", "proc/self/mountinfo/x": "", "sys/fs/cgroup/x/memory.max": "max",
		}, nil, false},
		"a limit that is garbage":     {map[string]string{"sys/fs/cgroup/memory.max": "many\n"}, nil, true},
		"a directory for a limit":     {map[string]string{"sys/fs/cgroup/memory.max/x": ""}, nil, true},
		"no such process":             {map[string]string{"sys/fs/cgroup/memory.max": "536870912"}, pid, true},
		"no cgroup under the root":    {map[string]string{"proc/self/cgroup": "0::/\n"}, nil, true},
		"a limit":                     {map[string]string{"sys/fs/cgroup/memory.max": "536870912"}, nil, false},
		"no limit":                    {map[string]string{"sys/fs/cgroup/memory.max": "max"}, nil, false},
		"the root, which has no file": {map[string]string{"sys/fs/cgroup/cgroup.controllers": "memory"}, nil, false},
	} {
		s := DefaultBudgetSettings()
		s.CgroupRoot = machine(t, c.files)
		if c.change != nil {
			c.change(&s)
		}
		ceiling := ReadCeiling(s, noEnv)
		if err := ceiling.Err(); (err != nil) != c.unread {
			t.Errorf("%s: error %v, want one: %v", name, err, c.unread)
		}
		if b := ceiling.Budget(s); c.unread && b.Bytes != int64(s.Floor) {
			t.Errorf("%s: a budget of %d bytes, want the floor of %d", name, b.Bytes, s.Floor)
		}
	}
}

// TestAFailedMeminfoIsNoFloor: the machine's memory that cannot be read is an error, and what was known of it stays.
func TestAFailedMeminfoIsNoFloor(t *testing.T) {
	t.Parallel()
	root := machine(t, map[string]string{"broken": "MemTotal: many kB\n"})
	good, broken := filepath.Join(root, "proc/meminfo"), filepath.Join(root, "broken")
	for name, c := range map[string]struct {
		paths    []string
		physical int64
		unread   bool
	}{
		"the first":         {[]string{good, broken}, 8 * gib, false},
		"the second":        {[]string{broken, good}, 8 * gib, false},
		"neither":           {[]string{broken, filepath.Join(root, "none")}, 4 * gib, true},
		"the same for both": {[]string{broken, broken}, 4 * gib, true},
	} {
		var ceiling Ceiling
		ceiling.readHost(Ceiling{Physical: 4 * gib, hostFile: good}, c.paths...)
		if ceiling.Physical != c.physical || (ceiling.Err() != nil) != c.unread {
			t.Errorf("%s: %d bytes, error %v; want %d, an error: %v", name, ceiling.Physical, ceiling.Err(), c.physical, c.unread)
		}
	}
}

// TestAgainKeepsWhatCannotBeRead: the last known limit stays while reading it fails, whatever fails, and goes with the next
// reading that succeeds. What is stated holds meanwhile.
func TestAgainKeepsWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/x/"
	for name, broken := range map[string]string{
		"the limit": dir + "memory.max", "the parent's": "sys/fs/cgroup/memory.max", "the membership": "proc/self/cgroup",
		"the throttling limit": dir + "memory.high",
	} {
		root := machine(t, map[string]string{
			"proc/self/cgroup": "0::/x\n", dir + "memory.max": "536870912", dir + "memory.high": "max",
			dir + "memory.current": "268435456", dir + "memory.stat": noCache, "sys/fs/cgroup/memory.max": "max",
		})
		s := DefaultBudgetSettings()
		s.CgroupRoot = root
		first := ReadCeiling(s, noEnv)
		write(t, root, broken, loop)
		s.RuntimeLimit = bytesOf(2 * gib)
		kept := first.Again(s, noEnv)
		expectLimit(t, kept, root, SourceCgroup, 512*mib, dir+"memory.max")
		if kept.Err() == nil || kept.Budget(s).Bytes != 16*mib || kept.sample(PSISettings{}).memory != .5 {
			t.Errorf("%s unreadable: error %v, budget %+v, sample %+v; want an error, 16 MiB and half of it used",
				name, kept.Err(), kept.Budget(s), kept.sample(PSISettings{}))
		}
		s.RuntimeLimit = bytesOf(256 * mib)
		expectLimit(t, kept.Again(s, noEnv), root, SourceMemoryLimit, 256*mib, "")
		for file, text := range map[string]string{"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/memory.max": "max", dir + "memory.high": "max", dir + "memory.max": "max"} {
			write(t, root, file, text)
		}
		if s.RuntimeLimit = nil; kept.Again(s, noEnv).Budget(s).Source != SourceHost {
			t.Errorf("%s readable again and unlimited: %s, want the machine's memory", name, kept.Again(s, noEnv))
		}
	}
}

// TestNamedProcessBeatsStatedLimit: the stated limit is what a container had when it started, and the cgroup of a named process
// is what it has now.
func TestNamedProcessBeatsStatedLimit(t *testing.T) {
	t.Parallel()
	peer := map[string]string{"proc/42/cgroup": "0::/ctr\n", "proc/self/cgroup": "0::/\n"}
	for _, tt := range []struct {
		name, max string
		stated    int64
		source    Source
		bytes     int64
	}{
		{"resized upwards", "2147483648", gib, SourceCgroup, 2 * gib},
		{"resized downwards", "536870912", gib, SourceCgroup, 512 * mib},
		{"without a limit of its own", "max", gib, SourceDownwardAPI, gib},
		{"out of sight", "", gib, SourceDownwardAPI, gib},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := machine(t, peer)
			if tt.max != "" {
				write(t, root, "sys/fs/cgroup/ctr/memory.max", tt.max+"\n")
			}
			s := DefaultBudgetSettings()
			s.CgroupRoot, s.CgroupPID, s.ProtectedMemory = root, 42, bytesOf(tt.stated)
			b := ReadCeiling(s, noEnv).Budget(s)
			if b.Source != tt.source || b.Ceiling != tt.bytes {
				t.Errorf("ceiling %d from %s, want %d from %s", b.Ceiling, b.Source, tt.bytes, tt.source)
			}
		})
	}
}
