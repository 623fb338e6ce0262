package memory

import "math"

// Source names where the budget's ceiling came from.
type Source string

// The sources of a ceiling. Their text appears in the health snapshot.
const (
	SourceDownwardAPI Source = "downward_api" // the protected container's limit, stated through resourceFieldRef
	SourceCgroup      Source = "cgroup"       // memory.max, memory.high or memory.limit_in_bytes on the way to the root
	SourceMemoryLimit Source = "memory_limit" // GOMEMLIMIT or a stated limit of the protected runtime
	SourceHost        Source = "host"         // physical memory: nothing else limits the process
	SourceOverride    Source = "override"     // the budget itself was configured
)

// Budget is how many bytes of heavy bodies may be reserved at once, and why that many. It is comparable.
type Budget struct {
	Bytes   int64  // bytes that may be reserved together; >= Floor, <= Cap
	Source  Source // what set the ceiling
	Ceiling int64  // the memory limit it was derived from, in bytes; equals Bytes for an override; 0 = none is known
	Where   string // file or setting that gave the ceiling, for people
}

// derive turns a ceiling in bytes into a budget: a body costs amplification times its bytes once parsed, and all bodies
// together may use fraction of the ceiling.
func (s BudgetSettings) derive(ceiling float64) int64 {
	return s.clamp(ceiling * s.Fraction / s.Amplification)
}

// clamp floors a number of bytes and keeps it between Floor and Cap. What is no number is as little as possible: an
// unknown limit must not become a large one.
func (s BudgetSettings) clamp(bytes float64) int64 {
	least, most := float64(s.Floor), float64(max(s.Floor, s.Cap))
	if math.IsNaN(bytes) {
		return int64(least)
	}
	return int64(min(max(math.Floor(bytes), least), most))
}
