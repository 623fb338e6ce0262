package adaptive

// MaxCost is the highest price of one request.
const MaxCost = 1000

// The quanta of Cost: how much of each feature makes one unit.
const (
	bytesPerUnit    = 16384
	tokensPerUnit   = 1024
	messagesPerUnit = 32
	toolsPerUnit    = 8
	bytesPerToken   = 4
	saturatingTools = 64
)

// Features are what a body tells about the work it will cause. Negative numbers count as zero.
type Features struct {
	Bytes    int64
	Tokens   int64 // 0: a quarter of the bytes, rounded up
	Messages int64
	Tools    int64 // more than 64 make the request as expensive as one can be
	Fanout   int64 // answers asked for at once; 0 is 1
	Stream   bool
}

// TokensOf estimates the tokens of a prompt of so many bytes.
func TokensOf(bytes int64) int64 { return units(bytes, bytesPerToken) }

// Cost prices a request in 1..MaxCost: one unit for being there, one per started quantum of each feature, and one or two
// for the class of its response. Features may be anything a client can claim, so every term is capped before it is added.
func Cost(f Features) int {
	if f.Tools > saturatingTools {
		return MaxCost
	}
	tokens := f.Tokens
	if tokens <= 0 {
		tokens = TokensOf(f.Bytes)
	}
	class := int64(2)
	if f.Stream {
		class = 1
	}
	sum := 1 + class +
		min(units(f.Bytes, bytesPerUnit), MaxCost) +
		min(units(tokens, tokensPerUnit), MaxCost) +
		min(units(f.Messages, messagesPerUnit), MaxCost) +
		units(f.Tools, toolsPerUnit) +
		min(max(1, f.Fanout), MaxCost)
	return int(min(sum, MaxCost))
}

// units is n/quantum rounded up, without the overflow of n+quantum-1.
func units(n, quantum int64) int64 {
	if n <= 0 {
		return 0
	}
	return (n-1)/quantum + 1
}

// generationCost is what a request counts for from its first token on: the generation itself, and the context that the
// upstream keeps for it.
func (s Settings) generationCost(tokens int64) int {
	if s.ContextQuantum == 0 {
		return s.GenerationCost
	}
	context := max(0, tokens) / int64(s.ContextQuantum)
	return s.GenerationCost + int(min(context, MaxCost))
}

// place is what a request of a cost takes of a limit that is part of a whole one. A place is not a price: the request's lane
// pays the full cost, but no request takes more than a share of the whole, so that a low limit locks nobody out and no head
// waits for all the others to end. Nor does it take more than the part, in which it would never fit.
func (s Settings) place(cost, part int, whole float64) int {
	return min(cost, max(1, min(part, int(whole*s.MaxShare))))
}
