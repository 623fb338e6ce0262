package budget

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Validate reports every setting that is out of its range or contradicts another, each by its key in the configuration
// (bytes.queue.maxWait), joined into one error.
func (s Settings) Validate() error {
	const day = 24 * time.Hour
	return errors.Join(
		atLeast("bytes.largeBody", s.LargeBody, 1),
		atLeast("bytes.hardMaxBody", s.HardMaxBody, 0),
		s.Budget.validate(),
		between("bytes.queue.maxWait", s.Queue.MaxWait, 0, day),
		between("bytes.queue.calmWait", s.Queue.CalmWait, 0, day),
		atLeast("bytes.queue.maxQueuedBytes", s.Queue.MaxQueuedBytes, 0),
		optional("bytes.heavySlots", s.HeavySlots, 1),
		optional("bytes.healthyHeadroom", s.HealthyHeadroom, 0),
		between("bytes.memoryRatio", s.MemoryRatio, 0, 1),
		atLeast("bytes.structure.messages", s.Structure.Messages, 1),
		atLeast("bytes.structure.tools", s.Structure.Tools, 1),
		atLeast("bytes.structure.tokens", s.Structure.Tokens, 1),
		atLeast("bytes.structure.hardMaxMessages", s.Structure.HardMaxMessages, 0),
		oneOf("bytes.structure.uncountable", s.Structure.Uncountable, AllowUncountable, RefuseUncountable),
		oneOf("bytes.releaseAt", s.ReleaseAt, ReleaseAtResponseStart, ReleaseAtResponseEnd),
		between("bytes.uploadTimeout", s.UploadTimeout, time.Millisecond, day),
		between("bytes.uploadMinRate", s.UploadMinRate, 0, 1<<30),
		between("bytes.uploadMaxTime", s.UploadMaxTime, time.Second, day),
	)
}

// maxBudget is more memory than any machine has; sums of a few of these fit an int64.
const maxBudget = 1 << 50

func (s BudgetSettings) validate() error {
	errs := []error{
		between("bytes.budget.fraction", s.Fraction, 0.01, 1),
		between("bytes.budget.amplification", s.Amplification, 1, 1000),
		between("bytes.budget.floor", s.Floor, 1, maxBudget),
		between("bytes.budget.cap", s.Cap, 1, maxBudget),
		optional("bytes.budget.protectedMemory", s.ProtectedMemory, 1),
		optional("bytes.budget.runtimeLimit", s.RuntimeLimit, 1),
		atLeast("bytes.budget.cgroupPid", s.CgroupPID, 0),
		between("bytes.budget.refresh", s.Refresh, 100*time.Millisecond, 24*time.Hour),
	}
	if s.Floor > s.Cap {
		errs = append(errs, fmt.Errorf("bytes.budget.floor: %v is more than bytes.budget.cap, %v", s.Floor, s.Cap))
	}
	if o := s.Override; o != nil && !(*o > 0 && *o <= maxBudget) {
		errs = append(errs, fmt.Errorf("bytes.budget.override: %v is not a number of bytes between 1 and %v", *o, maxBudget))
	}
	return errors.Join(errs...)
}

func atLeast[T cmp.Ordered](key string, value, least T) error {
	if value >= least {
		return nil
	}
	return fmt.Errorf("%s: %v is less than %v", key, value, least)
}

// optional is atLeast for a value that may be absent.
func optional[T cmp.Ordered](key string, value *T, least T) error {
	if value == nil {
		return nil
	}
	return atLeast(key, *value, least)
}

// between is written so that a NaN is outside.
func between[T cmp.Ordered](key string, value, least, most T) error {
	if value >= least && value <= most {
		return nil
	}
	return fmt.Errorf("%s: %v is not between %v and %v", key, value, least, most)
}

func oneOf[T comparable](key string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s: %v is none of %v", key, value, allowed)
}
