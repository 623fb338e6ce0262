package adaptive

import "time"

// Mode of a cluster's lanes.
type Mode string

// The three modes.
const (
	Off     Mode = "off"
	Shadow  Mode = "shadow"
	Enforce Mode = "enforce"
)

// Settings of one cluster's controller. Tags name the configuration key, the environment alias and the documentation
// line; package config reads all three.
type Settings struct {
	Mode                     Mode          `yaml:"mode" env:"ADAPTIVE_ADMISSION_MODE" enum:"off,shadow,enforce" doc:"off admits without accounting, shadow accounts and records what it would do, enforce queues and refuses."`
	MinLimit                 int           `yaml:"minLimit" env:"ADAPTIVE_ADMISSION_MIN_LIMIT" min:"1" max:"104249991" doc:"The adaptive limit never goes below this cost."`
	InitialLimit             int           `yaml:"initialLimit" env:"ADAPTIVE_ADMISSION_INITIAL_LIMIT" min:"1" max:"104249991" doc:"Limit at start; clamped to minLimit and maxLimit."`
	MaxLimit                 int           `yaml:"maxLimit" env:"ADAPTIVE_ADMISSION_MAX_LIMIT" min:"1" max:"104249991" doc:"The adaptive limit never goes above this cost."`
	Replicas                 int           `yaml:"replicas" min:"1" max:"1000" doc:"How many sidecars stand before the same upstreams: minLimit, initialLimit and maxLimit are what all of them have together, and each has its part. With share: redis it counts for as long as the store does not answer."`
	Share                    Sharing       `yaml:"share" enum:"off,redis" doc:"redis: sidecars with the same shareGroup learn one limit and divide it by demand, through leases.store.redis; see docs/replicas.md."`
	ShareGroup               string        `yaml:"shareGroup" doc:"Name of the group that shares one limit; empty is the route cluster's name."`
	MaxShare                 float64       `yaml:"maxShare" doc:"Most of the limit that one request takes, in (0,1]; its tenant pays its full cost all the same."`
	MaxConcurrent            int           `yaml:"maxConcurrent" min:"0" max:"104249991" doc:"Requests of the cluster that run at once at most, whatever they cost; more of them wait in their lanes. As with the limits, each of several replicas has its part. 0: only the limit counts."`
	TenantMaxConcurrent      int           `yaml:"tenantMaxConcurrent" min:"0" max:"104249991" doc:"The same for each tenant; tenant.maxConcurrent has those of single tenants."`
	MaxQueueCount            int           `yaml:"maxQueueCount" env:"ADAPTIVE_ADMISSION_MAX_QUEUE_COUNT" min:"1" max:"104249991" doc:"Waiters per queue (per lane with virtual lanes)."`
	MaxQueueCost             int           `yaml:"maxQueueCost" env:"ADAPTIVE_ADMISSION_MAX_QUEUE_COST" min:"1" max:"104249991" doc:"Waiting cost per queue (per lane with virtual lanes)."`
	MaxWait                  time.Duration `yaml:"maxWait" env:"ADAPTIVE_ADMISSION_MAX_WAIT_MS,ms" min:"1ms" max:"24h" doc:"Longest wait for capacity."`
	Window                   time.Duration `yaml:"window" env:"ADAPTIVE_ADMISSION_WINDOW_MS,ms" min:"1ms" max:"24h" doc:"Adaptation window."`
	DecreaseFactor           float64       `yaml:"decreaseFactor" doc:"Factor on the limit under high pressure, refusals of the upstream, and for a trial when latency rises; in (0,1)."`
	CriticalDecreaseFactor   float64       `yaml:"criticalDecreaseFactor" doc:"Factor on the limit under critical pressure, and for a trial when the knee may be far below; in (0,1), at most decreaseFactor."`
	IncreaseStep             int           `yaml:"increaseStep" min:"1" max:"104249991" doc:"Least by which the limit grows in a window of growth, and most by which it falls when latency is a little above normal."`
	MaxIncreasePerWindow     int           `yaml:"maxIncreasePerWindow" min:"1" max:"104249991" doc:"Most the limit grows in one window; growth is in proportion to the limit."`
	ShortAlpha               float64       `yaml:"shortAlpha" doc:"Most that one window counts in the short latency average, which remembers as many samples as its noise demands; in (0,1], above longAlpha."`
	LongAlpha                float64       `yaml:"longAlpha" doc:"Weight of a new sample in the long latency average; in (0,1]."`
	UtilizationHigh          float64       `yaml:"utilizationHigh" min:"0" max:"1" doc:"Utilisation from which the limit may grow."`
	UtilizationLow           float64       `yaml:"utilizationLow" min:"0" max:"1" doc:"Utilisation at or under which stale latency evidence expires."`
	LatencyGradientThreshold float64       `yaml:"latencyGradientThreshold" doc:"Relative rise of short over long latency that begins a trial of a lower limit; in (0,1]."`
	VirtualLanes             bool          `yaml:"virtualLanes" env:"OMNIROUTE_CHAT_VIRTUAL_LANES" doc:"A queue per tenant, shared fairly by the work done."`
	GenerationCost           int           `yaml:"generationCost" min:"0" max:"1000" doc:"Cost a request keeps from its first response byte to its end."`
	ContextQuantum           int           `yaml:"contextQuantum" min:"0" max:"104249991" doc:"Tokens of the prompt for which a request keeps one unit of cost more while its response is generated: its context takes memory and bandwidth of the upstream until the end. 0: none."`
	FirstToken               FirstToken    `yaml:"firstToken" enum:"auto,witness,headers,body" doc:"Where the first token of a response is seen: witness is a second filter for the first byte of the response body, body has Envoy send all of the body, headers takes the response headers for it. auto is witness in enforce, headers otherwise. The Envoy configuration must match."`
	FirstTokenSample         int           `yaml:"firstTokenSample" min:"1" max:"10000" doc:"The witness is called for one response in this many."`

	// Levels are the priority levels, the highest first; none is the same as one for all.
	Levels []Level `yaml:"-"`
}

// part are the settings of one of several replicas that know nothing of each other: each has its part of the bounds.
func (s Settings) part() Settings {
	divided := func(n int) int { return max(1, (n+s.Replicas/2)/s.Replicas) }
	s.MinLimit, s.InitialLimit, s.MaxLimit = divided(s.MinLimit), divided(s.InitialLimit), divided(s.MaxLimit)
	s.MaxConcurrent = s.concurrent(s.MaxConcurrent)
	return s
}

// concurrent is a replica's part of a number of requests that may run at once, rounded down so that all together do not exceed
// it; but each may run one.
func (s Settings) concurrent(n int) int {
	if n == 0 {
		return 0
	}
	return max(1, n/s.Replicas)
}

// bounded is a limit brought within its bounds.
func (s Settings) bounded(limit int) int { return min(max(limit, s.MinLimit), s.MaxLimit) }

// Sharing is how several sidecars come to one limit.
type Sharing string

// The ways to share a limit.
const (
	ShareOff   Sharing = "off"
	ShareRedis Sharing = "redis"
)

// FirstToken is how a cluster is to see first tokens.
type FirstToken string

// The ways to see first tokens. FirstTokenAuto is FirstTokenWitness in enforce mode, and FirstTokenHeaders otherwise.
const (
	FirstTokenAuto    FirstToken = "auto"
	FirstTokenWitness FirstToken = "witness"
	FirstTokenHeaders FirstToken = "headers"
	FirstTokenBody    FirstToken = "body"
)

// Witnessed reports whether the witness is wanted.
func (s Settings) Witnessed() bool {
	switch s.FirstToken {
	case FirstTokenWitness:
		return s.Mode != Off
	case FirstTokenAuto:
		return s.Mode == Enforce
	}
	return false
}

// DefaultSettings are the documented defaults.
func DefaultSettings() Settings {
	return Settings{
		Mode: Shadow, MinLimit: 8, InitialLimit: 64, MaxLimit: 1000, Replicas: 1, Share: ShareOff, MaxShare: 0.25, MaxQueueCount: 128, MaxQueueCost: 2000,
		MaxWait: 5 * time.Second, Window: time.Second, DecreaseFactor: 0.8, CriticalDecreaseFactor: 0.5,
		IncreaseStep: 1, MaxIncreasePerWindow: 100, ShortAlpha: 0.5, LongAlpha: 0.1,
		UtilizationHigh: 0.7, UtilizationLow: 0.3, LatencyGradientThreshold: 0.25, GenerationCost: 1, ContextQuantum: 2048,
		FirstToken: FirstTokenAuto, FirstTokenSample: 1,
	}
}
