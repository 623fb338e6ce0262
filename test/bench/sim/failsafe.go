package sim

import (
	"context"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/headgate/headgate/internal/sim"
	"github.com/headgate/headgate/pkg/adaptive"
)

// Failsafe is failsafe-go's adaptive limiter as it ships, with queueing and the same longest wait as the lanes. It limits
// requests, not cost, and takes whole execution times as samples.
func Failsafe(settled chan<- *sim.Exchange) (sim.Limiter, error) {
	const most = 1000 // as the lanes' highest limit, so that it is not what decides
	limiter := adaptivelimiter.NewBuilder[any]().WithLimits(1, most, 20).WithQueueing(2, 3).Build()
	return &failsafe{limiter: limiter, settled: settled, permits: make(map[*sim.Exchange]*entry)}, nil
}

type failsafe struct {
	limiter adaptivelimiter.AdaptiveLimiter[any]
	settled chan<- *sim.Exchange
	permits map[*sim.Exchange]*entry
}

// entry is one exchange; permit is written before the exchange is settled.
type entry struct {
	permit adaptivelimiter.Permit
	cancel context.CancelFunc
}

func (f *failsafe) Enter(x *sim.Exchange, _ string) sim.Answer {
	e := new(entry)
	if permit, ok := f.limiter.TryAcquirePermit(); ok {
		e.permit = permit
		f.permits[x] = e
		return sim.Admit
	}
	if !f.limiter.CanAcquirePermit() {
		return sim.Refuse
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	f.permits[x] = e
	go func() {
		permit, err := f.limiter.AcquirePermitWithMaxWait(ctx, 5*time.Second)
		e.permit, x.Refused = permit, err != nil
		select {
		case f.settled <- x:
		case <-ctx.Done():
			if err == nil {
				permit.Drop()
			}
		}
	}()
	return sim.Wait
}

func (f *failsafe) Forward(*sim.Exchange) {}

func (f *failsafe) Respond(*sim.Exchange, adaptive.Response) {}

func (f *failsafe) FirstToken(*sim.Exchange) {}

func (f *failsafe) Leave(x *sim.Exchange, o adaptive.Outcome) {
	e := f.permits[x]
	delete(f.permits, x)
	if o == adaptive.OK {
		e.permit.Record()
	} else {
		e.permit.Drop()
	}
	if e.cancel != nil {
		e.cancel()
	}
}

func (f *failsafe) Abandon(x *sim.Exchange) {
	f.permits[x].cancel()
	delete(f.permits, x)
}

func (f *failsafe) Limit() (limit, utilization float64) {
	l := float64(f.limiter.Limit())
	return l, float64(f.limiter.Inflight()) / max(l, 1)
}

func (f *failsafe) Close() error { return nil }
