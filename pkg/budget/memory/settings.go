package memory

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/pkg/budget/size"
)

// BudgetSettings derive the budget.
type BudgetSettings struct {
	Override        *float64      `yaml:"override" env:"OMNIROUTE_CHAT_MAX_INFLIGHT_BYTES" size:"true" doc:"The budget in bytes, instead of the derived one; clamped to floor and cap. null derives it."`
	Fraction        float64       `yaml:"fraction" min:"0.01" max:"1" doc:"Share of the memory ceiling that bodies in flight may use once parsed."`
	Amplification   float64       `yaml:"amplification" min:"1" max:"1000" doc:"Bytes of memory that one byte of body costs the protected process once parsed."`
	Floor           size.Bytes    `yaml:"floor" min:"1" max:"1024TiB" doc:"The derived budget is never smaller."`
	Cap             size.Bytes    `yaml:"cap" min:"1" max:"1024TiB" doc:"The derived budget is never larger."`
	ProtectedMemory *size.Bytes   `yaml:"protectedMemory" min:"1" doc:"Memory limit of the protected container in bytes, as the downward API gives it (resourceFieldRef limits.memory)."`
	RuntimeLimit    *size.Bytes   `yaml:"runtimeLimit" min:"1" doc:"Stated memory limit of the protected process's runtime (heap limit); GOMEMLIMIT in the environment counts as one."`
	CgroupRoot      string        `yaml:"cgroupRoot" doc:"Directory under which proc/ and sys/fs/cgroup/ of the protected process are found."`
	CgroupPID       int           `yaml:"cgroupPid" min:"0" doc:"Process under cgroupRoot whose cgroup is read; 0 means the sidecar's own (self)."`
	Refresh         time.Duration `yaml:"refresh" min:"100ms" max:"24h" doc:"How often the memory limit is read again (in-place resize)."`
}

// NamesProcess reports whether the settings name the process whose cgroup is read.
func (s BudgetSettings) NamesProcess() bool {
	return s.CgroupPID != 0 || filepath.Clean(cmp.Or(s.CgroupRoot, "/")) != "/"
}

// PressureSettings are the thresholds of the pressure monitor.
type PressureSettings struct {
	High     float64       `yaml:"high" min:"0" max:"1" doc:"Memory ratio from which pressure is high."`
	Critical float64       `yaml:"critical" min:"0" max:"1" doc:"Memory ratio from which pressure is critical: everything is refused."`
	Recovery float64       `yaml:"recovery" min:"0" max:"1" doc:"Memory ratio at or under which pressure is normal again."`
	PSI      PSISettings   `yaml:"psi" doc:"Thresholds of the pressure stall information (avg10, percent)."`
	Interval time.Duration `yaml:"interval" min:"10ms" max:"1m" doc:"How often the signals are sampled."`
}

// PSISettings are percentages of avg10.
type PSISettings struct {
	Disabled bool    `yaml:"disabled" env:"OMNIROUTE_PRESSURE_PSI_DISABLED" doc:"Leaves PSI out."`
	HostWide bool    `yaml:"hostWide" doc:"Reads /proc/pressure/memory where the cgroup has no PSI of its own."`
	High     float64 `yaml:"high" min:"0" max:"100" doc:"PSI avg10 from which pressure is high."`
	Critical float64 `yaml:"critical" min:"0" max:"100" doc:"PSI avg10 from which pressure is critical."`
	Recovery float64 `yaml:"recovery" min:"0" max:"100" doc:"PSI avg10 at or under which pressure is normal again."`
}

// DefaultBudgetSettings are the documented defaults.
func DefaultBudgetSettings() BudgetSettings {
	return BudgetSettings{
		Fraction: 0.25, Amplification: 8, Floor: 8 << 20, Cap: 2 << 30, CgroupRoot: "/", Refresh: 10 * time.Second,
	}
}

// DefaultPressureSettings are the documented defaults.
func DefaultPressureSettings() PressureSettings {
	return PressureSettings{
		High: 0.85, Critical: 0.92, Recovery: 0.75,
		PSI:      PSISettings{High: 30, Critical: 60, Recovery: 15},
		Interval: time.Second,
	}
}
