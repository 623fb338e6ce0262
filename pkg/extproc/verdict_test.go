package extproc

import (
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/lease"
)

func TestTheVerdictTableIsComplete(t *testing.T) {
	t.Parallel()
	if err := CheckVerdicts(); err != nil {
		t.Error(err)
	}
	if got, want := len(Verdicts()), int(reasonCount)+len(lease.Answers()); got != want {
		t.Errorf("%d rows, want one for each of %d reasons", got, want)
	}
}

// TestEveryReasonHasARow: what the byte budget, the lanes and leases say reaches the client under the same name.
func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	for _, r := range []budget.Reason{
		budget.QueueTimeout, budget.QueuedBytesBudget, budget.BodyExceedsBudget, budget.InflightBytesBudget,
		budget.ResourcePressure, budget.StructureLimit,
	} {
		if got := newVerdict(byteReason(r), 0); got.Reason != string(r) {
			t.Errorf("bytes: %s is refused as %q", r, got.Reason)
		}
	}
	for _, r := range []adaptive.Reason{
		adaptive.QueueFull, adaptive.Deadline, adaptive.Oversized, adaptive.ShutDown, adaptive.FanoutSkipped,
	} {
		if got := newVerdict(laneReason(r), 0); got.Reason != string(r) {
			t.Errorf("lanes: %s is refused as %q", r, got.Reason)
		}
	}
	for _, a := range lease.Answers() {
		if got := leaseVerdict(&lease.Refusal{Reason: a.Reason}); got.Reason != string(a.Reason) || got.HTTP != a.HTTP {
			t.Errorf("leases: %s is refused as %q with %d, want %d", a.Reason, got.Reason, got.HTTP, a.HTTP)
		}
	}
}

// TestRetryAfter: whole seconds, at least the row's and at most the bound of its kind.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row  Row
		hint time.Duration
		want time.Duration
	}{
		{table[queueTimeout], 0, 2 * time.Second},
		{table[queueTimeout], 2*time.Second + 1, 3 * time.Second},
		{table[queueTimeout], time.Hour, time.Minute},
		{table[payloadTooLarge], time.Minute, 0},
		{rowOfLease[lease.CapacityUnavailable], 2 * time.Hour, time.Hour},
	} {
		if got := c.row.retryAfter(c.hint); got != c.want {
			t.Errorf("%s, after %v: Retry-After %v, want %v", c.row.Reason, c.hint, got, c.want)
		}
	}
}

// TestRefusedTogetherDoNotComeBackTogether: of 300 refusals each whole second between the hint and twice the hint, or ten
// seconds later, is said to some, and nothing else; never more than the longest.
func TestRefusedTogetherDoNotComeBackTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hint        time.Duration
		first, last int // seconds
	}{
		{0, 2, 4}, {5 * time.Second, 5, 10}, {20 * time.Second, 20, 30}, {55 * time.Second, 50, 60}, {time.Hour, 50, 60},
	} {
		said := map[time.Duration]int{}
		for range 300 {
			said[newVerdict(queueTimeout, c.hint).RetryAfter]++
		}
		for s := c.first; s <= c.last; s++ {
			if said[time.Duration(s)*time.Second] == 0 {
				t.Errorf("after %v: nobody of 300 was told to come back in %d s: %v", c.hint, s, said)
			}
		}
		if want := c.last - c.first + 1; len(said) != want {
			t.Errorf("after %v: %d different values %v, want the %d from %d to %d s", c.hint, len(said), said, want, c.first, c.last)
		}
	}
	for range 100 {
		if got := newVerdict(payloadTooLarge, time.Minute).RetryAfter; got != 0 {
			t.Fatalf("payload_too_large: Retry-After %v, want none", got)
		}
		if got := leaseVerdict(&lease.Refusal{Reason: lease.CapacityUnavailable, RetryAfter: 2 * time.Hour}).RetryAfter; got > time.Hour || got < time.Hour-maxJitter {
			t.Fatalf("a lease: Retry-After %v, want an hour at most", got)
		}
	}
}

// TestARefusalAllocatesTheVerdictAlone: under overload refusals are most of the work.
func TestARefusalAllocatesTheVerdictAlone(t *testing.T) {
	var v *verdict
	if got := testing.AllocsPerRun(100, func() { v = newVerdict(queueTimeout, time.Second) }); got != 1 {
		t.Errorf("%v allocations for %s, want 1", got, v.Reason)
	}
}
