package adaptive

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxQuantity bounds limits and queue bounds, so that a limit held for the longest window (24 h in milliseconds) is still
// an integer that a float64 represents exactly.
const maxQuantity = 104_249_991

const maxDuration = 24 * time.Hour

// Validate reports every fault at once; each error begins with the name of its field.
func (s Settings) Validate() error {
	var faults []error
	check := func(ok bool, field, rule string, got any) {
		if !ok {
			faults = append(faults, fmt.Errorf("%s: must be %s, got %v", field, rule, got))
		}
	}
	quantity := func(field string, v int) {
		check(v >= 1 && v <= maxQuantity, field, fmt.Sprintf("in 1..%d", maxQuantity), v)
	}
	duration := func(field string, v time.Duration) {
		check(v >= time.Millisecond && v <= maxDuration, field, "in 1ms..24h", v)
	}
	// Written so that NaN fails.
	openUnit := func(field string, v float64) { check(v > 0 && v < 1, field, "in (0,1)", v) }
	halfOpenUnit := func(field string, v float64) { check(v > 0 && v <= 1, field, "in (0,1]", v) }

	check(s.Mode == Off || s.Mode == Shadow || s.Mode == Enforce, "mode", "off, shadow or enforce", fmt.Sprintf("%q", s.Mode))
	quantity("minLimit", s.MinLimit)
	quantity("initialLimit", s.InitialLimit)
	quantity("maxLimit", s.MaxLimit)
	check(s.MinLimit <= s.MaxLimit, "minLimit", "at most maxLimit", fmt.Sprintf("%d > %d", s.MinLimit, s.MaxLimit))
	check(s.Replicas >= 1 && s.Replicas <= 1000, "replicas", "in 1..1000", s.Replicas)
	check(s.Share == ShareOff || s.Share == ShareRedis, "share", "off or redis", fmt.Sprintf("%q", s.Share))
	check(len(s.ShareGroup) <= 128 && !strings.ContainsFunc(s.ShareGroup, func(c rune) bool { return c <= ' ' || c > '~' || c == '{' || c == '}' }),
		"shareGroup", "empty, or at most 128 visible ASCII characters without braces", fmt.Sprintf("%.140q", s.ShareGroup))
	halfOpenUnit("maxShare", s.MaxShare)
	names := make(map[string]bool, len(s.Levels))
	for i, l := range s.Levels {
		check(l.Share >= 1 && l.Share <= 1000, fmt.Sprintf("levels[%d].share", i), "in 1..1000", l.Share)
		check(!names[l.Name], fmt.Sprintf("levels[%d].name", i), "unique", fmt.Sprintf("%q", l.Name))
		names[l.Name] = true
	}
	concurrency := func(field string, v int) {
		check(v >= 0 && v <= maxQuantity, field, fmt.Sprintf("in 0..%d", maxQuantity), v)
	}
	concurrency("maxConcurrent", s.MaxConcurrent)
	concurrency("tenantMaxConcurrent", s.TenantMaxConcurrent)
	quantity("maxQueueCount", s.MaxQueueCount)
	quantity("maxQueueCost", s.MaxQueueCost)
	duration("maxWait", s.MaxWait)
	duration("window", s.Window)
	openUnit("decreaseFactor", s.DecreaseFactor)
	openUnit("criticalDecreaseFactor", s.CriticalDecreaseFactor)
	check(s.CriticalDecreaseFactor <= s.DecreaseFactor, "criticalDecreaseFactor", "at most decreaseFactor", s.CriticalDecreaseFactor)
	quantity("increaseStep", s.IncreaseStep)
	quantity("maxIncreasePerWindow", s.MaxIncreasePerWindow)
	halfOpenUnit("shortAlpha", s.ShortAlpha)
	halfOpenUnit("longAlpha", s.LongAlpha)
	check(s.ShortAlpha > s.LongAlpha, "shortAlpha", "above longAlpha", s.ShortAlpha)
	check(s.UtilizationHigh > 0 && s.UtilizationHigh <= 1, "utilizationHigh", "in (0,1]", s.UtilizationHigh)
	check(s.UtilizationLow >= 0 && s.UtilizationLow < s.UtilizationHigh, "utilizationLow", "in [0,utilizationHigh)", s.UtilizationLow)
	halfOpenUnit("latencyGradientThreshold", s.LatencyGradientThreshold)
	check(s.GenerationCost >= 0 && s.GenerationCost <= MaxCost, "generationCost", "in 0..1000", s.GenerationCost)
	check(s.ContextQuantum >= 0 && s.ContextQuantum <= maxQuantity, "contextQuantum", fmt.Sprintf("in 0..%d", maxQuantity), s.ContextQuantum)
	check(slices.Contains([]FirstToken{FirstTokenAuto, FirstTokenWitness, FirstTokenHeaders, FirstTokenBody}, s.FirstToken),
		"firstToken", "auto, witness, headers or body", fmt.Sprintf("%q", s.FirstToken))
	check(s.FirstTokenSample >= 1 && s.FirstTokenSample <= 10_000, "firstTokenSample", "in 1..10000", s.FirstTokenSample)
	return errors.Join(faults...)
}
