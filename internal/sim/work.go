package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Size of one request.
type Size struct {
	Prompt   int           // tokens, for an engine
	Output   int           // tokens, for an engine
	Cost     int           // cost the gate charges until the first byte
	Prefill  time.Duration // time to the first byte on an idle upstream
	Generate time.Duration // time the response then streams on an idle upstream
}

// Work of a request in cost·seconds.
func (s Size) Work() float64 {
	return float64(s.Cost)*s.Prefill.Seconds() + s.Generate.Seconds()
}

// Service is how long an idle upstream would need.
func (s Size) Service() time.Duration { return s.Prefill + s.Generate }

// Sizes draws the size of the next request.
type Sizes func(*rand.Rand) Size

// LogNormal describes requests without a trace: cost from a log-normal body, prefill proportional to the cost with
// log-normal noise, log-normal generation.
type LogNormal struct {
	Cost     float64       // median cost
	Sigma    float64       // of the cost
	PerCost  time.Duration // median prefill per unit of cost
	Noise    float64       // sigma of the prefill
	Generate time.Duration // median generation, 0 = none
	GenSigma float64
}

// Sizes that follow the description. Costs are rounded and kept in [1, 1000].
func (l LogNormal) Sizes() Sizes {
	return func(r *rand.Rand) Size {
		cost := int(math.Round(l.Cost * math.Exp(l.Sigma*r.NormFloat64())))
		cost = min(max(cost, 1), 1000)
		prefill := float64(l.PerCost) * float64(cost) * math.Exp(l.Noise*r.NormFloat64())
		generate := float64(l.Generate) * math.Exp(l.GenSigma*r.NormFloat64())
		return Size{Cost: cost, Prefill: time.Duration(prefill), Generate: time.Duration(generate)}
	}
}

// tokenSize prices a request of the trace: four bytes a token, 0.15 ms of prefill per context token, 30 ms of
// generation per generated token.
func tokenSize(context, generated int64) Size {
	return Size{
		Prompt: int(context), Output: int(generated),
		Cost:     adaptive.Cost(adaptive.Features{Bytes: 4 * context, Tokens: context, Messages: 1, Fanout: 1, Stream: true}),
		Prefill:  time.Duration(context) * 150 * time.Microsecond,
		Generate: time.Duration(generated) * 30 * time.Millisecond,
	}
}

// meanWork of a size distribution, from a fixed sample.
func (s Sizes) meanWork() (work float64) {
	const n = 20_000
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		work += s(r).Work()
	}
	return work / n
}

// Tenant offers requests at a mean rate.
type Tenant struct {
	Name  string
	Rate  float64 // requests per second
	Sizes Sizes
	Whole float64 // share of the requests that do not ask for a stream
}

// Mix is one hot tenant among quiet ones, scaled so that all together offer load times the capacity.
func Mix(quiet int, hot, load, capacity float64, sizes Sizes) []Tenant {
	work := sizes.meanWork()
	unit := load * capacity / work / (float64(quiet) + hot)
	tenants := []Tenant{{Name: "hot", Rate: hot * unit, Sizes: sizes}}
	for i := range quiet {
		tenants = append(tenants, Tenant{Name: "quiet" + string(rune('a'+i)), Rate: unit, Sizes: sizes})
	}
	return tenants
}

// Gaps yields the time to the next arrival, given the total rate.
type Gaps func(r *rand.Rand, rate float64) time.Duration

// Poisson arrivals.
func Poisson(r *rand.Rand, rate float64) time.Duration {
	return time.Duration(r.ExpFloat64() / rate * float64(time.Second))
}

// Even is one size for all.
func Even(size Size) Sizes { return func(*rand.Rand) Size { return size } }
