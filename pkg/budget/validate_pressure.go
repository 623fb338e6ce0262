package budget

import (
	"errors"
	"fmt"
	"time"
)

// Validate reports every fault of the thresholds in one error; each names its setting.
func (s PressureSettings) Validate() error {
	errs := thresholds("pressure", s.Recovery, s.High, s.Critical, 1)
	if !s.PSI.Disabled {
		errs = append(errs, thresholds("pressure.psi", s.PSI.Recovery, s.PSI.High, s.PSI.Critical, 100)...)
	}
	errs = append(errs, between("pressure.interval", s.Interval, 10*time.Millisecond, time.Minute))
	return errors.Join(errs...)
}

// thresholds checks 0 <= recovery < high <= critical <= most. Conditions are written so that NaN fails them.
func thresholds(path string, recovery, high, critical, most float64) []error {
	errs := []error{
		between(path+".recovery", recovery, 0, most),
		between(path+".high", high, 0, most),
		between(path+".critical", critical, 0, most),
	}
	if !(high > recovery) {
		errs = append(errs, fmt.Errorf("%s.high: %v is not greater than %s.recovery, %v", path, high, path, recovery))
	}
	if !(critical >= high) {
		errs = append(errs, fmt.Errorf("%s.critical: %v is less than %s.high, %v", path, critical, path, high))
	}
	return errs
}
