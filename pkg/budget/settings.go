package budget

import (
	"cmp"
	"path/filepath"
	"time"
)

// Settings of byte admission. Tags name the configuration key, the environment alias of the reference system and the
// documentation line; package config reads all three.
type Settings struct {
	LargeBody       Size              `yaml:"largeBody" env:"OMNIROUTE_CHAT_LARGE_BODY_BYTES" min:"1" doc:"A body is heavy, and reserves from the byte budget, from this many bytes on. Lighter bodies touch no counter."`
	HardMaxBody     Size              `yaml:"hardMaxBody" env:"OMNIROUTE_CHAT_HARD_MAX_BODY_BYTES" min:"0" doc:"A body of more bytes is refused with 413, declared or actual. 0 admits only empty bodies."`
	Budget          BudgetSettings    `yaml:"budget" doc:"How the process-wide byte budget is derived from the protected process's memory limit."`
	Queue           QueueSettings     `yaml:"queue" doc:"What heavy bodies do while the budget is taken."`
	HeavySlots      *int              `yaml:"heavySlots" env:"OMNIROUTE_CHAT_MAX_HEAVY_IN_FLIGHT" min:"1" doc:"Opt-in cap on heavy requests in flight; null means no count cap."`
	HealthyHeadroom *int              `yaml:"healthyHeadroom" env:"OMNIROUTE_CHAT_ADMISSION_HEALTHY_HEADROOM" min:"0" doc:"Extra heavy slots while the memory ratio is healthy; null means as many as heavySlots."`
	MemoryRatio     float64           `yaml:"memoryRatio" env:"OMNIROUTE_CHAT_ADMISSION_HEAP_SHED_RATIO" min:"0" max:"1" doc:"From this memory ratio on the healthy headroom is closed."`
	Structure       StructureSettings `yaml:"structure" doc:"What makes a byte-light JSON body heavy."`
	ReleaseAt       ReleaseAt         `yaml:"releaseAt" enum:"responseStart,responseEnd" doc:"When a reservation goes back: at the first response byte or at the end of the exchange."`
	UploadTimeout   time.Duration     `yaml:"uploadTimeout" min:"1ms" max:"24h" doc:"An incomplete upload without a byte, or with less than uploadMinRate, for this long loses its reservation and is refused with 408."`
	UploadMinRate   Size              `yaml:"uploadMinRate" min:"0" max:"1GiB" doc:"Least bytes a second of an incomplete upload, as a mean over uploadTimeout; a slower one is refused in the same way. 0: any byte counts. A gRPC stream is not refused for it, but gives back what it has reserved."`
	UploadMaxTime   time.Duration     `yaml:"uploadMaxTime" min:"1s" max:"24h" doc:"While others lack bytes, an incomplete upload must be fast enough to bring what it has reserved within this time."`
}

// BudgetSettings derive the budget.
type BudgetSettings struct {
	Override        *float64      `yaml:"override" env:"OMNIROUTE_CHAT_MAX_INFLIGHT_BYTES" size:"true" doc:"The budget in bytes, instead of the derived one; clamped to floor and cap. null derives it."`
	Fraction        float64       `yaml:"fraction" min:"0.01" max:"1" doc:"Share of the memory ceiling that bodies in flight may use once parsed."`
	Amplification   float64       `yaml:"amplification" min:"1" max:"1000" doc:"Bytes of memory that one byte of body costs the protected process once parsed."`
	Floor           Size          `yaml:"floor" min:"1" max:"1024TiB" doc:"The derived budget is never smaller."`
	Cap             Size          `yaml:"cap" min:"1" max:"1024TiB" doc:"The derived budget is never larger."`
	ProtectedMemory *Size         `yaml:"protectedMemory" min:"1" doc:"Memory limit of the protected container in bytes, as the downward API gives it (resourceFieldRef limits.memory)."`
	RuntimeLimit    *Size         `yaml:"runtimeLimit" min:"1" doc:"Stated memory limit of the protected process's runtime (heap limit); GOMEMLIMIT in the environment counts as one."`
	CgroupRoot      string        `yaml:"cgroupRoot" doc:"Directory under which proc/ and sys/fs/cgroup/ of the protected process are found."`
	CgroupPID       int           `yaml:"cgroupPid" min:"0" doc:"Process under cgroupRoot whose cgroup is read; 0 means the sidecar's own (self)."`
	Refresh         time.Duration `yaml:"refresh" min:"100ms" max:"24h" doc:"How often the memory limit is read again (in-place resize)."`
}

// NamesProcess reports whether the settings name the process whose cgroup is read.
func (s BudgetSettings) NamesProcess() bool {
	return s.CgroupPID != 0 || filepath.Clean(cmp.Or(s.CgroupRoot, "/")) != "/"
}

// QueueSettings bound the wait for bytes.
type QueueSettings struct {
	MaxWait        time.Duration `yaml:"maxWait" env:"OMNIROUTE_CHAT_ADMISSION_QUEUE_MS,ms" min:"0" max:"24h" doc:"Longest wait for bytes, used under high pressure. 0 refuses at once."`
	CalmWait       time.Duration `yaml:"calmWait" min:"0" max:"24h" doc:"Longest wait for bytes under normal pressure (never more than maxWait)."`
	MaxQueuedBytes Size          `yaml:"maxQueuedBytes" env:"OMNIROUTE_CHAT_ADMISSION_MAX_QUEUED_BYTES" min:"0" doc:"Bytes that may wait together, for the budget or for a lane. When it is full, the latest of the tenant with most waiting bytes is refused."`
}

// StructureSettings are thresholds; any reached makes the body heavy.
type StructureSettings struct {
	Messages        int `yaml:"messages" env:"OMNIROUTE_CHAT_HEAVY_MESSAGE_COUNT" min:"1" doc:"Messages from which a body counts as heavy."`
	Tools           int `yaml:"tools" env:"OMNIROUTE_CHAT_HEAVY_TOOL_COUNT" min:"1" doc:"Tools from which a body counts as heavy."`
	Tokens          int `yaml:"tokens" env:"OMNIROUTE_CHAT_HEAVY_ESTIMATED_TOKENS" min:"1" doc:"Estimated tokens from which a body counts as heavy."`
	HardMaxMessages int `yaml:"hardMaxMessages" env:"OMNIROUTE_CHAT_HARD_MAX_MESSAGES" min:"0" doc:"More messages are refused with 413; 0 is off."`

	Uncountable Uncountable `yaml:"uncountable" enum:"allow,refuse" doc:"Whether a body passes whose messages cannot be counted while hardMaxMessages is set: compressed, malformed, no JSON, or more than 10000 values. With allow the cap is advisory."`
}

// Uncountable says what becomes of bodies whose messages cannot be counted while there is a cap on them.
type Uncountable string

// The two choices.
const (
	AllowUncountable  Uncountable = "allow"
	RefuseUncountable Uncountable = "refuse"
)

// ReleaseAt says when a reservation goes back.
type ReleaseAt string

// The two moments a reservation can go back.
const (
	ReleaseAtResponseStart ReleaseAt = "responseStart"
	ReleaseAtResponseEnd   ReleaseAt = "responseEnd"
)

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

// DefaultSettings are the documented defaults.
func DefaultSettings() Settings {
	return Settings{
		LargeBody:   256 << 10,
		HardMaxBody: 50 << 20,
		Budget: BudgetSettings{
			Fraction: 0.25, Amplification: 8, Floor: 8 << 20, Cap: 2 << 30, CgroupRoot: "/", Refresh: 10 * time.Second,
		},
		Queue:         QueueSettings{MaxWait: 2 * time.Second, CalmWait: 250 * time.Millisecond, MaxQueuedBytes: 4 << 20},
		MemoryRatio:   0.75,
		Structure:     StructureSettings{Messages: 200, Tools: 64, Tokens: 32000, Uncountable: AllowUncountable},
		ReleaseAt:     ReleaseAtResponseStart,
		UploadTimeout: 30 * time.Second,
		UploadMinRate: 500, UploadMaxTime: 5 * time.Minute,
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
