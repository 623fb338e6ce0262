package memory

import (
	"math"
	"strings"
	"testing"
)

func TestBudgetSettingsNameTheirFaults(t *testing.T) {
	t.Parallel()
	s := DefaultBudgetSettings()
	if err := s.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	s.Floor, s.Cap = 2, 1
	override := math.Inf(1)
	s.Override = &override
	err := s.Validate()
	if err == nil {
		t.Fatal("a floor above the cap and an infinite override are valid")
	}
	for _, key := range []string{"bytes.budget.floor", "bytes.budget.override"} {
		if !strings.Contains(err.Error(), key+": ") {
			t.Errorf("%s is not named in:\n%v", key, err)
		}
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 2 {
		t.Errorf("%d faults, want 2:\n%v", lines, err)
	}
}

func TestOverrideIsPositiveAndFinite(t *testing.T) {
	t.Parallel()
	for value, valid := range map[float64]bool{1: true, 1024.5: true, 4 << 30: true, 0: false, -1: false, math.Inf(-1): false} {
		s := DefaultBudgetSettings()
		s.Override = &value
		if err := s.Validate(); (err == nil) != valid {
			t.Errorf("override %v: %v, want valid %v", value, err, valid)
		}
	}
}
