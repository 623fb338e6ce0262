package memory

import (
	"math"
	"strings"
	"testing"
)

func TestParseMemLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"": 0, "off": 0, "0": 0, "1": 1, "1024": 1024, "12B": 12, "1KiB": 1 << 10, "1MiB": 1 << 20, "1GiB": 1 << 30,
		"2TiB": 2 << 40, "9223372036854775807": 0, "1048576TiB": 0, "00512MiB": 512 << 20,
	} {
		got, err := parseMemLimit(text)
		if err != nil || got != want {
			t.Errorf("parseMemLimit(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"OFF", "-1", "+1", " 1", "1 ", "1K", "1KB", "1MB", "1Mi", "1gib", "1.5GiB", "1e9", "GiB", "B", "1GiBB", "1BB", "0x10",
		"1_000", "9223372036854775808", "9000000TiB", "18446744073709551616",
	} {
		if got, err := parseMemLimit(text); err == nil {
			t.Errorf("parseMemLimit(%q) = %d, want an error", text, got)
		}
	}
}

func TestParsePSI(t *testing.T) {
	t.Parallel()
	const text = "some avg10=12.34 avg60=1.00 avg300=0.00 total=123\nfull avg10=5.60 avg60=0.00 avg300=0.00 total=45\n"
	got, err := parsePSI(strings.NewReader(text))
	if err != nil || got != (stall{some: 12.34, full: 5.6}) {
		t.Errorf("parsePSI = %+v, %v; want 12.34 and 5.6", got, err)
	}
	for _, text := range []string{
		"", "some avg10=1.00\n", "full avg10=1.00\n", "some avg10=NaN\nfull avg10=1\n", "some avg10=1\nfull avg10=-1\n", "some avg60=1\nfull avg60=1\n",
	} {
		if got, err := parsePSI(strings.NewReader(text)); err == nil {
			t.Errorf("parsePSI(%q) = %+v, want an error", text, got)
		}
	}
}

func TestUnescapeMount(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`/a\040b`: "/a b", `\011\012\134`: "\t\n\\", `/a\04`: `/a\04`, `/a\`: `/a\`, `/\999`: `/\999`, `/\777`: `/\777`, `/ü\040`: "/ü ",
	} {
		if got := unescapeMount(text); got != want {
			t.Errorf("unescapeMount(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzParseMemLimit(f *testing.F) {
	for _, text := range []string{"", "off", "1GiB", "9223372036854775807", "-1", "99999999TiB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parseMemLimit(text); got < 0 || got >= noLimit || (err != nil && got != 0) {
			t.Errorf("parseMemLimit(%q) = %d, %v: not a limit", text, got, err)
		}
		if got, err := parseLimitFile(text); got < 0 || got >= noLimit || (err != nil && got != 0) {
			t.Errorf("parseLimitFile(%q) = %d, %v: not a limit", text, got, err)
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	f.Add(v1Mount + v2Mount)
	f.Add("36 35 0:28 / /my\\040cg rw master:1 shared:2 - cgroup2 whatever rw")
	f.Add("1 2 0:3 / / rw - cgroup2 rw\n1 2 0:3 / - - - - -")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, _ := parseMounts(strings.NewReader(text))
		for _, m := range mounts {
			if (m.version != 1 && m.version != 2) || !strings.HasPrefix(m.point, "/") || !strings.HasPrefix(m.root, "/") {
				t.Errorf("mount %+v from %q", m, text)
			}
		}
	})
}

func FuzzParseMembership(f *testing.F) {
	f.Add("4:memory:/docker/abc\n0::/a:b/c d\n", "/docker")
	f.Add("0::/../../x (deleted)\n1:name=systemd:/", "/..")
	f.Add(":::\n0:\n0::relative", "")
	f.Fuzz(func(t *testing.T, text, root string) {
		m, _ := parseMembership(strings.NewReader(text))
		for _, path := range []string{m.v1, m.v2} {
			names, below := relative(root, path)
			for _, name := range names {
				if !below || name == ".." || name == "" || strings.Contains(name, "/") {
					t.Errorf("relative(%q, %q) = %q, %v: leads elsewhere", root, path, names, below)
				}
			}
		}
	})
}

func FuzzParseStatistics(f *testing.F) {
	f.Add("some avg10=1.00 avg60=0\nfull avg10=0.5\n")
	f.Add("oom 3\noom_kill -1\ninactive_file 99999999999999999999\n")
	f.Add("MemTotal: 9007199254740992 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parsePSI(strings.NewReader(text)); err == nil && (math.IsNaN(s.some+s.full) || s.some < 0 || s.full > 100) {
			t.Errorf("parsePSI(%q) = %+v", text, s)
		}
		if total, err := parseMemTotal(strings.NewReader(text)); total < 0 || (err == nil && total == 0) {
			t.Errorf("parseMemTotal(%q) = %d, %v", text, total, err)
		}
		_ = parseCounters(strings.NewReader(text), func(name string, value int64) {
			if value < 0 {
				t.Errorf("parseCounters(%q) handed on %s %d", text, name, value)
			}
		})
	})
}

// FuzzReadCeiling reads whole machines of which every file says anything.
func FuzzReadCeiling(f *testing.F) {
	f.Add("0::/x\n", v2Mount, "536870912\n", "max\n", "268435456\n", noCache, "low 0\noom_kill 1\n")
	f.Add("4:memory:/x\n0::/y\n", v1Mount+v2Mount, "9223372036854771712", "", "1", "hierarchical_memory_limit 1000\n"+noCache, "oom_kill 7\n")
	f.Add("0::/../../x\n", "30 24 0:24 /../x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "-1", "garbage", "-5", "inactive_file -1\n", "")
	f.Add("0::/x (deleted)\n", "30 24 0:24 / /sys/fs\\040cgroup rw a:1 - cgroup2 x rw\n", "1", "0", "99999999999999999999", "active_file 5\ninactive_file 6\n", "oom 9\n")
	root := f.TempDir() // one for all, since making and removing trees takes most of the time
	f.Fuzz(func(t *testing.T, membership, mounts, limit, high, current, stat, events string) {
		files := map[string]string{
			"proc/meminfo": "MemTotal: 8388608 kB\n", "proc/self/cgroup": membership, "proc/self/mountinfo": mounts,
		}
		for _, dir := range []string{"sys/fs/cgroup/x/", "sys/fs/cgroup/memory/x/"} {
			for name, text := range map[string]string{
				"memory.max": limit, "memory.high": high, "memory.limit_in_bytes": limit, "memory.current": current,
				"memory.usage_in_bytes": current, "memory.stat": stat, "memory.events": events, "memory.oom_control": events,
			} {
				files[dir+name] = text
			}
		}
		for name, text := range files {
			write(t, root, name, text)
		}
		s := DefaultBudgetSettings()
		s.CgroupRoot = root
		for c, i := ReadCeiling(s, noEnv), 0; i < 2; c, i = c.Again(s, noEnv), i+1 {
			for _, l := range c.Limits {
				if l.Bytes <= 0 || l.Bytes >= c.Physical {
					t.Errorf("limit %+v of a machine of %d bytes", l, c.Physical)
				}
			}
			b := c.Budget(s)
			if b.Bytes < int64(s.Floor) || b.Bytes > int64(s.Cap) || b.Source == SourceHost && c.Err() != nil && b.Bytes != int64(s.Floor) {
				t.Errorf("budget %+v, error %v", b, c.Err())
			}
			got := c.sample(PSISettings{})
			if got.memory < 0 || got.high < 0 || math.IsInf(got.memory, 0) || got.oom < -1 || got.oomKills < -1 {
				t.Errorf("sample %+v", got)
			}
			if got.unread != nil && !(math.IsNaN(got.memory) && math.IsNaN(got.high)) {
				t.Errorf("sample %+v although the use cannot be read: %v", got, got.unread)
			}
		}
	})
}
