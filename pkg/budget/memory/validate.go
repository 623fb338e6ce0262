package memory

import (
	"errors"
	"fmt"
)

// maxBudget is more memory than any machine has; sums of a few of these fit an int64.
const maxBudget = 1 << 50

// Validate reports what the ranges in the tags cannot say: every setting that contradicts another, each by its key in the
// configuration (bytes.budget.floor), joined into one error.
func (s BudgetSettings) Validate() error {
	var errs []error
	if s.Floor > s.Cap {
		errs = append(errs, fmt.Errorf("bytes.budget.floor: %v is more than bytes.budget.cap, %v", s.Floor, s.Cap))
	}
	if o := s.Override; o != nil && !(*o > 0 && *o <= maxBudget) {
		errs = append(errs, fmt.Errorf("bytes.budget.override: %v is not a number of bytes between 1 and %v", *o, maxBudget))
	}
	return errors.Join(errs...)
}

// Validate reports what the ranges in the tags cannot say: every threshold that is out of order, joined into one error; each
// names its setting.
func (s PressureSettings) Validate() error {
	errs := ordered("pressure", s.Recovery, s.High, s.Critical)
	if !s.PSI.Disabled {
		errs = append(errs, ordered("pressure.psi", s.PSI.Recovery, s.PSI.High, s.PSI.Critical)...)
	}
	return errors.Join(errs...)
}

// ordered checks recovery < high <= critical. Conditions are written so that NaN fails them.
func ordered(path string, recovery, high, critical float64) (errs []error) {
	if !(high > recovery) {
		errs = append(errs, fmt.Errorf("%s.high: %v is not greater than %s.recovery, %v", path, high, path, recovery))
	}
	if !(critical >= high) {
		errs = append(errs, fmt.Errorf("%s.critical: %v is less than %s.high, %v", path, critical, path, high))
	}
	return errs
}
