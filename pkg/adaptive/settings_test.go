package adaptive

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestDefaultSettingsAreValid(t *testing.T) {
	t.Parallel()
	if err := DefaultSettings().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestSettingsRules(t *testing.T) {
	t.Parallel()
	for field, breakIt := range map[string][]func(*Settings){
		"mode":          {func(s *Settings) { s.Mode = "strict" }, func(s *Settings) { s.Mode = "" }},
		"minLimit":      {func(s *Settings) { s.MinLimit = 0 }, func(s *Settings) { s.MinLimit, s.MaxLimit = 20, 10 }},
		"initialLimit":  {func(s *Settings) { s.InitialLimit = 104249992 }},
		"maxLimit":      {func(s *Settings) { s.MaxLimit = 104249992 }},
		"maxQueueCount": {func(s *Settings) { s.MaxQueueCount = 0 }, func(s *Settings) { s.MaxQueueCount = math.MaxInt }},
		"maxQueueCost":  {func(s *Settings) { s.MaxQueueCost = -1 }},
		"maxWait":       {func(s *Settings) { s.MaxWait = 0 }, func(s *Settings) { s.MaxWait = 24*time.Hour + 1 }},
		"window":        {func(s *Settings) { s.Window = time.Microsecond }, func(s *Settings) { s.Window = 25 * time.Hour }},
		"decreaseFactor": {
			func(s *Settings) { s.DecreaseFactor = 1 }, func(s *Settings) { s.DecreaseFactor = math.NaN() },
		},
		"criticalDecreaseFactor": {
			func(s *Settings) { s.CriticalDecreaseFactor = 0 }, func(s *Settings) { s.CriticalDecreaseFactor = 0.9 },
		},
		"increaseStep":             {func(s *Settings) { s.IncreaseStep = 0 }},
		"maxIncreasePerWindow":     {func(s *Settings) { s.MaxIncreasePerWindow = 0 }},
		"shortAlpha":               {func(s *Settings) { s.ShortAlpha = 0.1 }, func(s *Settings) { s.ShortAlpha = math.Inf(1) }},
		"longAlpha":                {func(s *Settings) { s.LongAlpha = 0 }},
		"utilizationHigh":          {func(s *Settings) { s.UtilizationHigh = 1.1 }},
		"utilizationLow":           {func(s *Settings) { s.UtilizationLow = 0.7 }, func(s *Settings) { s.UtilizationLow = -0.1 }},
		"latencyGradientThreshold": {func(s *Settings) { s.LatencyGradientThreshold = 0 }},
		"generationCost":           {func(s *Settings) { s.GenerationCost = 1001 }},
	} {
		for i, f := range breakIt {
			s := DefaultSettings()
			f(&s)
			err := s.Validate()
			if err == nil || !strings.Contains(err.Error(), field+": ") {
				t.Errorf("%s, fault %d: got %v, want an error that names the field", field, i, err)
			}
		}
	}
}

func TestSettingsReportAllFaultsTogether(t *testing.T) {
	t.Parallel()
	err := (Settings{}).Validate()
	if err == nil {
		t.Fatal("empty settings are valid")
	}
	for _, field := range []string{"mode", "minLimit", "maxQueueCount", "maxWait", "window", "decreaseFactor", "shortAlpha", "utilizationHigh"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q is not among the faults: %v", field, err)
		}
	}
}

func TestLargestQuantitiesAreValid(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	s.MaxLimit, s.InitialLimit, s.MaxQueueCount, s.MaxQueueCost, s.IncreaseStep, s.MaxIncreasePerWindow =
		maxQuantity, maxQuantity, maxQuantity, maxQuantity, maxQuantity, maxQuantity
	s.Window, s.MaxWait = 24*time.Hour, 24*time.Hour
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}
