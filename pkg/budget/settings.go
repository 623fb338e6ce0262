package budget

import (
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
)

// Settings of byte admission. Tags name the configuration key, the environment alias of the reference system and the
// documentation line; package config reads all three.
type Settings struct {
	LargeBody       size.Bytes            `yaml:"largeBody" env:"OMNIROUTE_CHAT_LARGE_BODY_BYTES" min:"1" doc:"A body is heavy, and reserves from the byte budget, from this many bytes on. Lighter bodies touch no counter."`
	HardMaxBody     size.Bytes            `yaml:"hardMaxBody" env:"OMNIROUTE_CHAT_HARD_MAX_BODY_BYTES" min:"0" doc:"A body of more bytes is refused with 413, declared or actual. 0 admits only empty bodies."`
	Count           Count                 `yaml:"count" enum:"received,framed" doc:"What is counted of a body whose length is declared: the bytes received, or the length, which Envoy holds clients to. With framed such bodies do not come to the sidecar at all (extproc envoy prints the routes for it), which reads nothing in them: they are priced by their length, and structure does not apply."`
	Budget          memory.BudgetSettings `yaml:"budget" doc:"How the process-wide byte budget is derived from the protected process's memory limit."`
	Queue           QueueSettings         `yaml:"queue" doc:"What heavy bodies do while the budget is taken."`
	HeavySlots      *int                  `yaml:"heavySlots" env:"OMNIROUTE_CHAT_MAX_HEAVY_IN_FLIGHT" min:"1" doc:"Opt-in cap on heavy requests in flight; null means no count cap."`
	HealthyHeadroom *int                  `yaml:"healthyHeadroom" env:"OMNIROUTE_CHAT_ADMISSION_HEALTHY_HEADROOM" min:"0" doc:"Extra heavy slots while the memory ratio is healthy; null means as many as heavySlots."`
	MemoryRatio     float64               `yaml:"memoryRatio" env:"OMNIROUTE_CHAT_ADMISSION_HEAP_SHED_RATIO" min:"0" max:"1" doc:"From this memory ratio on the healthy headroom is closed."`
	Structure       StructureSettings     `yaml:"structure" doc:"What makes a byte-light JSON body heavy."`
	ReleaseAt       ReleaseAt             `yaml:"releaseAt" enum:"responseStart,responseEnd" doc:"When a reservation goes back: at the first response byte or at the end of the exchange."`
	UploadTimeout   time.Duration         `yaml:"uploadTimeout" min:"1ms" max:"24h" doc:"An incomplete upload without a byte, or with less than uploadMinRate, for this long loses its reservation and is refused with 408."`
	UploadMinRate   size.Bytes            `yaml:"uploadMinRate" min:"0" max:"1GiB" doc:"Least bytes a second of an incomplete upload, as a mean over uploadTimeout; a slower one is refused in the same way. 0: any byte counts. A gRPC stream is not refused for it, but gives back what it has reserved."`
	UploadMaxTime   time.Duration         `yaml:"uploadMaxTime" min:"1s" max:"24h" doc:"While others lack bytes, an incomplete upload must be fast enough to bring what it has reserved within this time."`
}

// Count says what is counted of a body whose length is declared.
type Count string

// The two things to count.
const (
	CountReceived Count = "received" // the bytes, as they arrive
	CountFramed   Count = "framed"   // the declared length, for which HTTP's framing vouches
)

// QueueSettings bound the wait for bytes.
type QueueSettings struct {
	MaxWait        time.Duration `yaml:"maxWait" env:"OMNIROUTE_CHAT_ADMISSION_QUEUE_MS,ms" min:"0" max:"24h" doc:"Longest wait for bytes, used under high pressure. 0 refuses at once."`
	CalmWait       time.Duration `yaml:"calmWait" min:"0" max:"24h" doc:"Longest wait for bytes under normal pressure (never more than maxWait)."`
	MaxQueuedBytes size.Bytes    `yaml:"maxQueuedBytes" env:"OMNIROUTE_CHAT_ADMISSION_MAX_QUEUED_BYTES" min:"0" doc:"Bytes that may wait together, for the budget or for a lane. When it is full, the latest of the tenant with most waiting bytes is refused."`
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

// smallShare is the part of largeBody up to which a body is small. One byte of JSON can make one value of half a hundred bytes in
// the memory of who parses it, eight times what ordinary JSON makes: what is smaller than an eighth of a body that touches no
// counter costs no more than that, however it is built.
const smallShare = 8

// SmallBody is the largest body whose structure cannot matter, in bytes.
func (s Settings) SmallBody() int64 { return int64(s.LargeBody) / smallShare }

// DefaultSettings are the documented defaults.
func DefaultSettings() Settings {
	return Settings{
		LargeBody:     256 << 10,
		HardMaxBody:   50 << 20,
		Count:         CountReceived,
		Budget:        memory.DefaultBudgetSettings(),
		Queue:         QueueSettings{MaxWait: 2 * time.Second, CalmWait: 250 * time.Millisecond, MaxQueuedBytes: 4 << 20},
		MemoryRatio:   0.75,
		Structure:     StructureSettings{Messages: 200, Tools: 64, Tokens: 32000, Uncountable: AllowUncountable},
		ReleaseAt:     ReleaseAtResponseStart,
		UploadTimeout: 30 * time.Second,
		UploadMinRate: 500, UploadMaxTime: 5 * time.Minute,
	}
}
