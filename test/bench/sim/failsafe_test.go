package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/sim"
)

// The peer runs through a simulation with overload, time-outs and clients that leave, and every request has an outcome.
func TestFailsafeAccountsForEveryRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sim.Overload(1, 64, sim.Hard, sim.Moderate(), time.Minute)
		s.Warmup, s.Cancel = 0, 0.2
		r, err := sim.Simulate(s, Failsafe)
		if err != nil {
			t.Fatal(err)
		}
		var offered, accounted, completed int
		for _, tenant := range r.Tenants {
			offered += tenant.Offered
			accounted += tenant.Refused + tenant.Completed + tenant.Timeouts + tenant.Cancelled
			completed += tenant.Completed
		}
		if offered != accounted+r.Open || completed == 0 {
			t.Errorf("of %d requests %d completed, %d have an outcome and %d were open at the end", offered, completed, accounted, r.Open)
		}
	})
}
