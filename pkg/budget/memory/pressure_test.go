package memory

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

var unknown = math.NaN()

// calm is a sample with every signal at rest, changed by f.
func calm(changes ...func(*sample)) sample {
	s := sample{cgroup: "/x", memory: .1, high: .1}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func memory(ratio float64) func(*sample) { return func(s *sample) { s.memory = ratio } }
func raw(ratio float64) func(*sample)    { return func(s *sample) { s.high = ratio } }
func some(percent float64) func(*sample) { return func(s *sample) { s.stall.some = percent } }
func full(percent float64) func(*sample) { return func(s *sample) { s.stall.full = percent } }
func ooms(n int64) func(*sample)         { return func(s *sample) { s.oom = n } }
func kills(n int64) func(*sample)        { return func(s *sample) { s.oomKills = n } }
func in(cgroup string) func(*sample)     { return func(s *sample) { s.cgroup = cgroup } }

// seen is a sample, a second after the one before, and what must follow from it.
type seen struct {
	sample    sample
	severity  Severity
	signal    string
	value     float64
	threshold float64
}

func normal(s sample) seen { return seen{sample: s} }

func TestPressureStates(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		steps []seen
	}{
		{"nothing known is normal", []seen{
			normal(sample{memory: unknown, high: unknown, stall: stall{unknown, unknown}, oom: -1, oomKills: -1}),
			normal(sample{memory: unknown, high: unknown, stall: stall{unknown, unknown}, oom: -1, oomKills: -1}),
		}},
		{"two samples to high, one to recover", []seen{
			normal(calm(memory(.85))),
			{calm(memory(.86)), High, SignalMemoryRatio, .86, .85},
			normal(calm(memory(.75))),
		}},
		{"one sample alone is nothing", []seen{
			normal(calm(memory(.99))), normal(calm()), normal(calm(memory(.99))), normal(calm()),
		}},
		{"just under high is normal", []seen{normal(calm(memory(.8499))), normal(calm(memory(.8499)))}},
		{"two samples to critical from normal", []seen{
			normal(calm(memory(.92))),
			{calm(memory(.93)), Critical, SignalMemoryRatio, .93, .92},
		}},
		{"the second sample decides how far it rises", []seen{
			normal(calm(memory(.95))),
			{calm(memory(.86)), High, SignalMemoryRatio, .86, .85},
			{calm(memory(.95)), High, SignalMemoryRatio, .95, .85},
			{calm(memory(.95)), Critical, SignalMemoryRatio, .95, .92},
		}},
		{"between recovery and high it stays", []seen{
			normal(calm(memory(.85))),
			{calm(memory(.85)), High, SignalMemoryRatio, .85, .85},
			{calm(memory(.80)), High, SignalMemoryRatio, .80, .75},
			{calm(memory(.7501)), High, SignalMemoryRatio, .7501, .75},
			normal(calm(memory(.74))),
		}},
		{"critical falls to high, then to normal", []seen{
			normal(calm(memory(.95))),
			{calm(memory(.95)), Critical, SignalMemoryRatio, .95, .92},
			{calm(memory(.88)), High, SignalMemoryRatio, .88, .85},
			{calm(memory(.80)), High, SignalMemoryRatio, .80, .75},
			normal(calm(memory(.75))),
			normal(calm(memory(.88))), // and rises anew only with two
		}},
		{"between them, no rise either", []seen{normal(calm(memory(.80))), normal(calm(memory(.80))), normal(calm(memory(.80)))}},
		{"a signal holds only what it could raise", []seen{
			normal(calm(memory(.93), some(20))),
			{calm(memory(.93), some(20)), Critical, SignalMemoryRatio, .93, .92},
			normal(calm(memory(.10), some(20))),
		}},
		{"recovery needs every signal that raised it", []seen{
			normal(calm(memory(.85), some(30))),
			{calm(memory(.85), some(30)), High, SignalMemoryRatio, .85, .85},
			{calm(memory(.10), some(20)), High, SignalPSISome, 20, 15},
			normal(calm(memory(.10), some(15))),
		}},
		{"just above recovery critical ends", []seen{
			normal(calm(memory(.93))),
			{calm(memory(.93)), Critical, SignalMemoryRatio, .93, .92},
			{calm(memory(.76)), High, SignalMemoryRatio, .76, .75},
			{calm(memory(.76)), High, SignalMemoryRatio, .76, .75},
		}},
		{"different signals confirm each other", []seen{
			normal(calm(some(30))),
			{calm(full(30)), High, SignalPSIFull, 30, 30},
		}},
		{"the highest wins", []seen{
			normal(calm(memory(.86), full(60))),
			{calm(memory(.86), full(60)), Critical, SignalPSIFull, 60, 60},
		}},
		{"working set against memory.high", []seen{
			normal(calm(raw(.93))),
			{calm(raw(.93)), Critical, SignalMemoryHigh, .93, .92},
		}},
		{"old OOM kills are the baseline", []seen{normal(calm(kills(7), ooms(9))), normal(calm(kills(7), ooms(9)))}},
		{"growth is critical at once, for ten seconds", slices.Concat(
			[]seen{normal(calm(kills(7)))},
			slices.Repeat([]seen{{calm(kills(9)), Critical, SignalOOMKill, 2, 1}}, 10),
			[]seen{normal(calm(kills(9))), {calm(kills(9), ooms(1)), Critical, SignalOOM, 1, 1}},
		)},
		{"going backwards is a reset", []seen{
			normal(calm(kills(7))), normal(calm(kills(2))),
			{calm(kills(3)), Critical, SignalOOMKill, 1, 1},
		}},
		{"another cgroup is another baseline", []seen{normal(calm(kills(7))), normal(calm(kills(9), in("/y")))}},
		{"growth while the counter was unreadable counts", []seen{
			normal(calm(kills(7))), normal(calm(kills(-1))),
			{calm(kills(8)), Critical, SignalOOMKill, 1, 1},
		}},
		{"a signal that fails is held, then forgotten", []seen{
			normal(calm(memory(.95))),
			{calm(memory(.95)), Critical, SignalMemoryRatio, .95, .92},
			{calm(memory(unknown)), Critical, SignalMemoryRatio, .95, .75}, // 1 s
			{calm(memory(unknown)), Critical, SignalMemoryRatio, .95, .75},
			{calm(memory(unknown)), Critical, SignalMemoryRatio, .95, .75},
			{calm(memory(unknown)), Critical, SignalMemoryRatio, .95, .75},
			{calm(memory(unknown)), Critical, SignalMemoryRatio, .95, .75}, // 5 s
			normal(calm(memory(unknown))),
		}},
		{"a failing signal raises nothing", []seen{normal(calm(memory(.95))), normal(calm(memory(unknown))), normal(calm(memory(.95)))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var state pressureState
			now := time.Unix(0, 0)
			for i, step := range tt.steps {
				now = now.Add(time.Second)
				got := state.step(now, step.sample, DefaultPressureSettings(), .75)
				got.Healthy, got.until = false, time.Time{}
				want := Pressure{Severity: step.severity, Signal: step.signal, Value: step.value, Threshold: step.threshold}
				if got != want {
					t.Fatalf("sample %d: pressure = %+v, want %+v", i+1, got, want)
				}
			}
		})
	}
}

func TestHealthyMemory(t *testing.T) {
	t.Parallel()
	for ratio, want := range map[float64]bool{.5: true, .7499: true, .75: false, 1.2: false, unknown: true} {
		var state pressureState
		if got := state.step(time.Unix(0, 0), calm(memory(ratio)), DefaultPressureSettings(), .75).Healthy; got != want {
			t.Errorf("memory ratio %v: healthy = %v, want %v", ratio, got, want)
		}
	}
}

func TestDisabledPSI(t *testing.T) {
	t.Parallel()
	settings := DefaultPressureSettings()
	settings.PSI.Disabled = true
	var state pressureState
	for i := range 3 {
		now := time.Unix(int64(i), 0)
		if got := state.step(now, calm(some(100), full(100)), settings, .75); got.Severity != Normal {
			t.Errorf("sample %d: pressure = %+v, want normal", i+1, got)
		}
	}
}

func TestSampleV2(t *testing.T) {
	t.Parallel()
	const slice, leaf = "sys/fs/cgroup/pod/", "sys/fs/cgroup/pod/ctr/"
	root := machine(t, map[string]string{
		"proc/self/cgroup":       "0::/pod/ctr\n",
		"proc/self/mountinfo":    v2Mount,
		leaf + "memory.max":      "1000",
		leaf + "memory.high":     "max",
		leaf + "memory.current":  "900\n",
		leaf + "memory.stat":     "anon 500\nfile 390\ninactive_file 100\nactive_file 200\nshmem 90\n",
		leaf + "memory.events":   "low 0\nhigh 8\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\n",
		leaf + "memory.pressure": "some avg10=12.00 avg60=0 avg300=0 total=0\nfull avg10=3.00 avg60=0 avg300=0 total=0\n",
		slice + "memory.max":     "4000",
		slice + "memory.high":    "2000",
		slice + "memory.current": "1900\n",
		slice + "memory.stat":    "inactive_file 300\nactive_file 0\n",
	})
	got := readUnder(root).sample(PSISettings{})
	want := sample{
		cgroup: root + "/sys/fs/cgroup/pod/ctr",
		memory: .6, // of the container: (900-300)/1000; the pod is at (1900-300)/4000
		high:   .8, // of the pod: (1900-300)/2000
		stall:  stall{some: 12, full: 3},
		oom:    3, oomKills: 2,
	}
	if got != want {
		t.Errorf("sample = %+v, want %+v", got, want)
	}
}

func TestSampleV1(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/memory/x/"
	root := machine(t, map[string]string{
		"proc/self/cgroup":            "4:memory:/x\n",
		"proc/self/mountinfo":         v1Mount,
		"proc/pressure/memory":        "some avg10=50.00\nfull avg10=40.00\n",
		dir + "memory.limit_in_bytes": "1000",
		dir + "memory.usage_in_bytes": "900",
		dir + "memory.stat":           "inactive_file 1\nactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200\n",
		dir + "memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
	})
	got := readUnder(root).sample(PSISettings{})
	if got.memory != .6 || got.oomKills != 4 || got.oom != -1 || !math.IsNaN(got.high) || !math.IsNaN(got.stall.some) {
		t.Errorf("sample = %+v, want memory .6, 4 OOM kills and nothing else", got)
	}
	got = readUnder(root).sample(PSISettings{HostWide: true})
	if got.stall != (stall{some: 50, full: 40}) {
		t.Errorf("host-wide stall = %+v, want 50 and 40", got.stall)
	}
	if got = readUnder(root).sample(PSISettings{HostWide: true, Disabled: true}); !math.IsNaN(got.stall.some) {
		t.Errorf("disabled: stall = %+v, want none", got.stall)
	}
}

// On hybrid machines a process's memory is in a v1 cgroup and its stalls in its unified one. At the top of that, they are
// the whole machine's.
func TestStallOfHybridMachine(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"proc/self/cgroup":                             "4:memory:/x\n0::/y\n",
		"proc/self/mountinfo":                          v1Mount + "34 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000",
		"sys/fs/cgroup/unified/y/cgroup.controllers":   "",
		"sys/fs/cgroup/unified/y/cgroup.procs":         "1\n",
		"sys/fs/cgroup/unified/y/cgroup.events":        "populated 1\n",
		"sys/fs/cgroup/unified/y/memory.pressure":      "some avg10=7.00\nfull avg10=6.00\n",
		"sys/fs/cgroup/unified/cgroup.controllers":     "",
		"sys/fs/cgroup/unified/cgroup.procs":           "1\n",
		"sys/fs/cgroup/unified/memory.pressure":        "some avg10=99.00\nfull avg10=99.00\n",
	}
	if got := readUnder(machine(t, files)).sample(PSISettings{}); got.stall != (stall{some: 7, full: 6}) {
		t.Errorf("stall = %+v, want that of the unified cgroup, 7 and 6", got.stall)
	}
	files["proc/self/cgroup"] = "4:memory:/x\n0::/\n"
	if got := readUnder(machine(t, files)).sample(PSISettings{}); !math.IsNaN(got.stall.some) {
		t.Errorf("stall = %+v, want none: it is the machine's", got.stall)
	}
}

func TestUnreadableSignals(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/"
	root := machine(t, map[string]string{
		"proc/self/cgroup":      "0::/\n",
		dir + "memory.max":      "1000",
		dir + "memory.current":  "garbage",
		dir + "memory.events":   "oom many\noom_kill\n",
		dir + "memory.pressure": "",
	})
	got := readUnder(root).sample(PSISettings{HostWide: true})
	if !math.IsNaN(got.memory) || !math.IsNaN(got.stall.full) || got.oom != -1 || got.oomKills != -1 {
		t.Errorf("sample = %+v, want nothing known", got)
	}
	write(t, root, dir+"memory.current", "400")
	for _, stat := range []string{"", "anon 400\n", "inactive_file 100\n", "inactive_file many\nactive_file 0\n"} {
		if stat != "" {
			write(t, root, dir+"memory.stat", stat)
		}
		if got := readUnder(root).sample(PSISettings{}); !math.IsNaN(got.memory) || got.unread == nil {
			t.Errorf("memory.stat %q: memory ratio %v, error %v, want it unknown and the reason", stat, got.memory, got.unread)
		}
	}
	write(t, root, dir+"memory.stat", "inactive_file 500\nactive_file 0\n")
	if got := readUnder(root).sample(PSISettings{}); got.memory != 0 {
		t.Errorf("more file cache than memory: ratio = %v, want 0", got.memory)
	}
}

func TestPressureSettingsNameTheirFaults(t *testing.T) {
	t.Parallel()
	if err := DefaultPressureSettings().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	tests := []struct {
		name   string
		change func(*PressureSettings)
		want   []string
	}{
		{"recovery equals high", func(s *PressureSettings) { s.Recovery = .85 }, []string{"pressure.high:"}},
		{"high over critical", func(s *PressureSettings) { s.High = .95 }, []string{"pressure.critical:"}},
		{"high equals critical", func(s *PressureSettings) { s.High = .92 }, nil},
		{"NaN", func(s *PressureSettings) { s.High = unknown }, []string{"pressure.high:", "pressure.critical:"}},
		{"psi", func(s *PressureSettings) { s.PSI.High, s.PSI.Critical = 10, 5 }, []string{"pressure.psi.high:", "pressure.psi.critical:"}},
		{"psi is not looked at when disabled", func(s *PressureSettings) { s.PSI = PSISettings{Disabled: true} }, nil},
		{"all at once", func(s *PressureSettings) { *s = PressureSettings{} }, []string{"pressure.high:", "pressure.psi.high:"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := DefaultPressureSettings()
			tt.change(&s)
			err := s.Validate()
			if (err != nil) != (len(tt.want) > 0) {
				t.Fatalf("Validate = %v, want faults of %v", err, tt.want)
			}
			for _, field := range tt.want {
				if !strings.Contains(err.Error(), field) {
					t.Errorf("Validate = %v, want it to name %s", err, field)
				}
			}
		})
	}
}

// TestWhatDividesThePressure: the working set is compared with what the kernel enforces on the same cgroup, never with a limit
// that a runtime sets itself.
func TestWhatDividesThePressure(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/"
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*BudgetSettings)
		want   Severity
	}{
		"a JVM above its heap limit": {map[string]string{
			dir + "memory.max": "4294967296", dir + "memory.current": "3328599654", dir + "memory.stat": "anon 3328599654\n" + noCache,
		}, func(s *BudgetSettings) { s.RuntimeLimit = bytesOf(3 * gib) }, Normal},
		"page cache just below memory.high": {map[string]string{
			dir + "memory.max": "4294967296", dir + "memory.high": "3865470566", dir + "memory.current": "3850000000",
			dir + "memory.stat": "anon 524288000\nactive_file 800000000\ninactive_file 2500000000\n",
		}, nil, Normal},
		"reclaimable slab": {map[string]string{
			dir + "memory.max": "1000", dir + "memory.current": "950", dir + "memory.stat": noCache + "slab_reclaimable 500\n",
		}, nil, Normal},
		"93 % of working set": {map[string]string{
			dir + "memory.max": "1000", dir + "memory.current": "980", dir + "memory.stat": "anon 930\ninactive_file 50\nactive_file 0\n",
		}, nil, Critical},
		"93 % of memory.high": {map[string]string{
			dir + "memory.max": "2000", dir + "memory.high": "1000", dir + "memory.current": "930", dir + "memory.stat": noCache,
		}, nil, Critical},
		"a machine without limits, nearly full": {map[string]string{
			"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 60 kB\n", dir + "cgroup.controllers": "memory",
		}, nil, Critical},
		"a machine without limits, full of cache": {map[string]string{
			"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n", dir + "cgroup.controllers": "memory",
		}, nil, Normal},
	} {
		s := DefaultBudgetSettings()
		s.CgroupRoot = machine(t, c.files)
		if c.change != nil {
			c.change(&s)
		}
		ceiling := ReadCeiling(s, noEnv)
		var state pressureState
		var p Pressure
		for i := range 2 {
			p = state.step(time.Unix(int64(i), 0), ceiling.sample(PSISettings{}), DefaultPressureSettings(), .75)
		}
		if p.Severity != c.want {
			t.Errorf("%s: %+v of %+v, want %s", name, p, ceiling.sample(PSISettings{}), c.want)
		}
	}
}
