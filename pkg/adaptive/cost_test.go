package adaptive

import (
	"math"
	"testing"
	"testing/quick"
)

func TestCost(t *testing.T) {
	t.Parallel()
	const most = math.MaxInt64
	for _, tc := range []struct {
		name string
		f    Features
		want int
	}{
		{"an empty streaming request costs its presence, one answer and a stream", Features{0, 0, 0, 0, 1, true}, 3},
		{"an answer in one piece costs one more", Features{0, 0, 0, 0, 1, false}, 4},
		{"one of everything starts a unit of everything", Features{1, 1, 1, 1, 1, true}, 7},
		{"a full quantum is one unit", Features{16384, 4096, 1, 0, 1, true}, 9},
		{"64 KiB of text", Features{65536, 16384, 10, 0, 1, true}, 24},
		{"partial quanta round up", Features{2000, 500, 33, 9, 3, false}, 12},
		{"a large chat", Features{262144, 65536, 200, 64, 1, true}, 98},
		{"unknown tokens are a quarter of the bytes", Features{Bytes: 16384, Messages: 1, Fanout: 1, Stream: true}, 9},
		{"unknown tokens round up", Features{Bytes: 1, Fanout: 1, Stream: true}, 5},
		{"no fan-out is one answer", Features{Stream: true}, 3},
		{"negative claims count as nothing", Features{-1, -1, -1, -1, -1, true}, 3},
		{"64 tools are priced", Features{Tools: 64, Stream: true}, 11},
		{"more than 64 tools saturate", Features{Tools: 65, Stream: true}, 1000},
		{"50 MiB saturate", Features{Bytes: 50 << 20, Stream: true}, 1000},
		{"the largest numbers saturate", Features{most, most, most, 64, most, false}, 1000},
		{"the largest fan-out alone saturates", Features{Fanout: most}, 1000},
	} {
		if got := Cost(tc.f); got != tc.want {
			t.Errorf("%s: Cost(%+v) = %d, want %d", tc.name, tc.f, got, tc.want)
		}
	}
}

func TestCostIsBoundedAndNeverFallsWithMoreOfAFeature(t *testing.T) {
	t.Parallel()
	grow := func(f Features, more uint32) bool {
		c := Cost(f)
		if c < 3 || c > MaxCost {
			return false
		}
		larger := f
		larger.Bytes = saturatingAdd(larger.Bytes, int64(more))
		larger.Messages = saturatingAdd(larger.Messages, int64(more))
		larger.Tools = saturatingAdd(larger.Tools, int64(more))
		larger.Fanout = saturatingAdd(larger.Fanout, int64(more))
		return Cost(larger) >= c
	}
	if err := quick.Check(grow, nil); err != nil {
		t.Error(err)
	}
}

func saturatingAdd(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func TestGenerationCost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		tokens        int64
		quantum, want int
	}{
		{500, 4096, 1}, {4095, 4096, 1}, {4096, 4096, 2}, {20_000, 4096, 5}, {-1, 4096, 1}, {1 << 62, 1, 1 + MaxCost}, {20_000, 0, 1},
	} {
		s := Settings{GenerationCost: 1, ContextQuantum: tc.quantum}
		if got := s.generationCost(tc.tokens); got != tc.want {
			t.Errorf("%d tokens at a quantum of %d: %d, want %d", tc.tokens, tc.quantum, got, tc.want)
		}
	}
}
