package extproc

import (
	"testing"
	"time"
)

func TestVerdictsAreRowsOfTheTable(t *testing.T) {
	t.Parallel()
	for _, row := range Verdicts() {
		if got := newVerdict(row.Reason, 0); got.Row != row || got.RetryAfter != row.Retry {
			t.Errorf("%s: %+v, want its row and its Retry-After of %v", row.Reason, got, row.Retry)
		}
	}
	for _, c := range []struct {
		reason string
		hint   time.Duration
		want   time.Duration
	}{
		{"queue_timeout", 0, 2 * time.Second},
		{"queue_timeout", 2*time.Second + 1, 3 * time.Second},
		{"queue_timeout", time.Hour, time.Minute},
		{"payload_too_large", time.Minute, 0},
		{"LEASE_CAPACITY_UNAVAILABLE", 2 * time.Hour, time.Hour},
		{"no such reason", 0, time.Second},
	} {
		if got := newVerdict(c.reason, c.hint); got.RetryAfter != c.want {
			t.Errorf("%s, after %v: Retry-After %v, want %v", c.reason, c.hint, got.RetryAfter, c.want)
		}
	}
	if got := newVerdict("no such reason", 0); got.Reason != "admission_unavailable" {
		t.Errorf("an unknown reason is refused as %s, want admission_unavailable", got.Reason)
	}
}

// TestARefusalAllocatesTheVerdictAlone: under overload refusals are most of the work.
func TestARefusalAllocatesTheVerdictAlone(t *testing.T) {
	var v *Verdict
	if got := testing.AllocsPerRun(100, func() { v = newVerdict("queue_timeout", time.Second) }); got != 1 {
		t.Errorf("%v allocations for %s, want 1", got, v.Reason)
	}
}
