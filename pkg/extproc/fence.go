package extproc

import (
	"context"
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/lease"
)

// fenceCall is one call to the lease store, which another goroutine makes: the exchange waits for its answer as it does for
// everything else, and sees its client leave meanwhile. The zero value is none.
type fenceCall struct {
	answer <-chan fenceAnswer // yields the answer, or is closed without one after a fault
}

type fenceAnswer struct {
	fence   lease.Fence
	refusal *lease.Refusal
}

func (c *fenceCall) pending() bool { return c.answer != nil }

// answered is readable when the call is over.
func (c *fenceCall) answered() <-chan fenceAnswer { return c.answer }

// fenceGate is the last thing before forwarding: it is pending while the store is asked, which is not begun, or is begun
// anew, while bytes are waited for.
func (x *exchange) fenceGate() (pending bool, _ *verdict) {
	if !x.leaseGoverns() || x.lease.fenced {
		return false, nil
	}
	if !x.fence.pending() && !x.reservation.waiting() {
		x.fence.answer = x.server.checkLease(x.ctx, x.leaseCheck())
	}
	return true, nil
}

// leaseCheck is the call to the store that the exchange needs: the check of its lease or, for a request without one, the choice of
// a connection.
func (x *exchange) leaseCheck() func(context.Context) (lease.Fence, *lease.Refusal) {
	leases := x.server.leases
	x.lease.model = x.model()
	if x.needsLease() {
		check := lease.FenceAsk{
			Pool: x.settings.Lease.Pool, Owner: x.lease.owner, Generation: x.lease.generation,
			Identity: x.facts.caller, Pin: x.facts.connection, Model: x.lease.model,
		}
		return func(ctx context.Context) (lease.Fence, *lease.Refusal) { return leases.Check(ctx, check) }
	}
	pick := lease.UnmanagedAsk{Pool: x.settings.Lease.Pool, Pin: x.facts.connection, Model: x.lease.model}
	return func(ctx context.Context) (lease.Fence, *lease.Refusal) { return leases.Unmanaged(ctx, pick) }
}

// checkLease makes a call in the background. It ends with the context, or at the latest with the store's own time-out.
func (s *Server) checkLease(ctx context.Context, check func(context.Context) (lease.Fence, *lease.Refusal)) <-chan fenceAnswer {
	answer := make(chan fenceAnswer, 1) // nobody may be waiting any more
	s.background.Go(func() {
		defer close(answer)
		defer func() {
			if fault := recover(); fault != nil {
				s.log.Error("panic in a lease check", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
			}
		}()
		var a fenceAnswer
		a.fence, a.refusal = check(ctx)
		answer <- a
	})
	return answer
}

// endFence takes in the store's answer. Where bytes are waited for by now it would be out of date at the end of that.
func (x *exchange) endFence(a fenceAnswer, ok bool) result {
	x.fence = fenceCall{}
	switch verdict := leaseVerdict(a.refusal); {
	case x.ctx.Err() != nil: // that is what the store refuses for
		return result{kind: gone, err: x.ctx.Err()}
	case !ok:
		return result{kind: broken, err: status.Error(codes.Internal, "the lease check failed")}
	case verdict != nil:
		x.tracing.leaseChecked(verdict)
		return refusedBy(verdict)
	case x.moot, x.reservation.waiting():
		return result{}
	}
	x.tracing.leaseChecked(nil)
	x.lease.fence, x.lease.fenced = a.fence, true
	x.lease.renew(x.server.leases)
	if x.lease.keep != nil && x.server.lettingGo() {
		x.server.renewOnce(x.lease.renewal(x.facts.caller))
	}
	return refusedBy(x.wrongModel()) // what came while the store was asked counts too
}
