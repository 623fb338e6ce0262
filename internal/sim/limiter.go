package sim

import (
	"fmt"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Headgate is the controller that ships, with the given settings.
func Headgate(s adaptive.Settings) Factory {
	return func(settled chan<- *Exchange) (Limiter, error) {
		c, err := adaptive.New(s)
		if err != nil {
			return nil, err
		}
		return &headgate{controller: c, settled: settled, perTenant: true}, nil
	}
}

// FIFO is the same controller with all tenants in one lane.
func FIFO(s adaptive.Settings) Factory {
	return func(settled chan<- *Exchange) (Limiter, error) {
		c, err := adaptive.New(s)
		if err != nil {
			return nil, err
		}
		return &headgate{controller: c, settled: settled}, nil
	}
}

// Enforcing are the default settings in enforce mode with a lane per tenant: the one configuration of all scenarios.
func Enforcing() adaptive.Settings {
	s := adaptive.DefaultSettings()
	s.Mode = adaptive.Enforce
	s.VirtualLanes = true
	return s
}

// Static is the same with a limit that does not move.
func Static(limit int) adaptive.Settings {
	s := Enforcing()
	s.MinLimit, s.InitialLimit, s.MaxLimit = limit, limit, limit
	return s
}

type headgate struct {
	controller *adaptive.Controller
	settled    chan<- *Exchange
	perTenant  bool
}

// ticket is a permit with a way to stop waiting for it.
type ticket struct {
	adaptive.Permit
	abandoned chan struct{}
}

func (h *headgate) Enter(x *Exchange, tenant string) Answer {
	t := new(ticket)
	x.handle = t
	r := adaptive.Request{Cost: x.Size.Cost, Class: x.class(), Tokens: int64(x.Size.Prompt)}
	if h.perTenant {
		r.Lane = tenant
	}
	switch h.controller.Acquire(&t.Permit, r) {
	case adaptive.Admitted:
		return Admit
	case adaptive.Waiting:
		t.abandoned = make(chan struct{})
		go h.await(x, t)
		return Wait
	default:
		return Refuse
	}
}

func (h *headgate) await(x *Exchange, t *ticket) {
	select {
	case <-t.Ready():
		x.Refused = t.Reason() != ""
	case <-t.abandoned:
		return
	}
	select {
	case h.settled <- x:
	case <-t.abandoned:
	}
}

func (h *headgate) Abandon(x *Exchange) {
	t := x.handle.(*ticket)
	t.Cancel()
	close(t.abandoned)
}

func (h *headgate) Forward(x *Exchange) { x.handle.(*ticket).Forwarded() }

func (h *headgate) Respond(x *Exchange, r adaptive.Response) { x.handle.(*ticket).Respond(r) }

func (h *headgate) FirstToken(x *Exchange) { x.handle.(*ticket).FirstToken() }

func (h *headgate) Leave(x *Exchange, o adaptive.Outcome) { x.handle.(*ticket).Done(o) }

func (h *headgate) Limit() (limit, utilization float64) {
	s := h.controller.Totals()
	return float64(s.CurrentLimit), s.Utilization
}

func (h *headgate) Close() error {
	h.controller.Shutdown()
	if s := h.controller.Snapshot(); s.ActiveCost != 0 || s.QueuedCost != 0 {
		return fmt.Errorf("after the last exchange: active cost %d, queued cost %d", s.ActiveCost, s.QueuedCost)
	}
	return nil
}

// Unlimited admits everything at once.
func Unlimited(chan<- *Exchange) (Limiter, error) { return unlimited{}, nil }

type unlimited struct{}

func (unlimited) Enter(*Exchange, string) Answer       { return Admit }
func (unlimited) Forward(*Exchange)                    {}
func (unlimited) Respond(*Exchange, adaptive.Response) {}
func (unlimited) FirstToken(*Exchange)                 {}
func (unlimited) Leave(*Exchange, adaptive.Outcome)    {}
func (unlimited) Abandon(*Exchange)                    {}
func (unlimited) Limit() (limit, utilization float64)  { return 0, 0 }
func (unlimited) Close() error                         { return nil }
