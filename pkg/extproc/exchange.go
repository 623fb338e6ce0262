package extproc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// exchange is one HTTP exchange, which is one gRPC stream. The goroutine that runs it owns all of its state.
type exchange struct {
	server   *Server
	stream   grpc.ServerStream
	ctx      context.Context
	policy   *policy
	settings config.Cluster // of the route cluster
	inbox    inbox
	plan     plan
	facts    facts
	body     body
	replies  replies
	timing   timing

	headersSuffice bool // the decision needs nothing but the headers
	unread         bool // nothing would be done with the body: the exchange is let go with the headers' answer
	idled          bool // the upload paused and the decision was taken on what had arrived
	decided        bool // answers go out as messages come
	reported       bool // the decision is counted
	responded      bool // response headers have come
	noBody         bool // the response has none
	moot           bool // an answer came before the decision: the gates have nothing left to protect
	described      bool // the answer with the metadata is out

	reservation reservation      // in the byte budget
	permit      permit           // of the route cluster's lanes
	fence       fenceCall        // to the lease store
	lease       leaseHold        // of the session
	outcome     adaptive.Outcome // what the response said
	tracing     tracing
	verdict     *verdict // of a refusal
}

// run is the whole life of an exchange.
func (x *exchange) run() error {
	first, err := x.inbox.first()
	for err == nil && first.Phase == wire.None { // flow control may come before the headers
		first, err = x.inbox.first()
	}
	if err != nil {
		return normalEnd(err) // it never began: nothing to decide, nothing to count
	}
	if isWitness(first) {
		return x.witness(first)
	}
	x.begin(first)
	if first.Observability {
		return x.observe(first)
	}
	end := x.decide(first)
	if end.ok() {
		end = x.admit()
	}
	for end.ok() && !x.nothingGoverns() {
		end = x.await()
	}
	return x.conclude(end)
}

// begin reads the facts and finds out what the decision will need.
func (x *exchange) begin(first *wire.Message) {
	x.timing.start()
	x.plan = readPlan(first.Protocol)
	x.facts = readFacts(first, x.policy)
	if name := policyName(x.ctx); name != "" {
		x.facts.cluster = name
	}
	x.settings = x.policy.config.Cluster(x.facts.cluster)
	x.facts.cluster = x.server.clusterName(x.policy, x.facts.cluster)
	x.startSpan()
	x.identifyCaller(first)
	x.body = body{declared: x.facts.declared, scans: true}
	x.body.scanner.Reset()
	x.body.over = first.Phase == wire.RequestHeaders && (first.EndOfStream || !x.plan.sendsBody())
	if x.body.over && !first.EndOfStream {
		x.body.seen = max(0, x.body.declared) // all that will ever be known of it
	}
	x.unread = x.plan.mayLeave(false) && x.needsNoBody()
	x.headersSuffice = x.body.over || x.unread || x.facts.bodyless || x.facts.upgrade || x.facts.grpc ||
		(!x.plan.withholdsHeaders() && x.leaseGoverns())
	x.moot = first.Phase >= wire.ResponseHeaders // a filter before us answered, and Envoy shows us only that
	// What the upstream gets before the decision is charged as it comes.
	x.reservation.open = x.plan.forwardsEarly() && !x.headersSuffice
}

// decide passes the gates in their order. A gate that is pending is tried again after each thing that happens; until the
// last has passed, whatever would let Envoy contact the upstream is withheld.
func (x *exchange) decide(first *wire.Message) result {
	if v := x.take(first); v != nil {
		return refusedBy(v)
	}
	for _, gate := range gates {
		for !x.moot {
			pending, verdict := gate.pass(x)
			if verdict != nil {
				return refusedBy(verdict)
			}
			if !pending {
				break
			}
			if end := x.await(); !end.ok() {
				return end
			}
		}
	}
	return result{}
}

// admit lets Envoy contact the upstream: the withheld answers go out. Only then is the exchange counted as admitted.
func (x *exchange) admit() result {
	x.decided = true
	x.timing.resetPace(time.Now()) // the upload is not responsible for what the decision took
	x.body.scans = x.body.scans && x.scanMatters()
	x.forwardLane()
	if err := x.flush(); err != nil {
		return endedBy(err)
	}
	reason := reasonAdmitted
	if x.moot {
		reason = reasonAnsweredEarlier
	}
	x.timing.admitted = x.report(reason, nil).Took
	return result{}
}

// conclude sends the refusal, where there is one, and says how the gRPC stream ends.
func (x *exchange) conclude(end result) error {
	x.timing.stop()
	if end.kind == refused && !x.responded {
		x.outcome = adaptive.Withdrawn
	}
	x.release()
	switch end.kind {
	case refused:
		x.verdict = end.verdict
		x.report(end.verdict.Reason, end.verdict)
		return x.refuse(end.verdict)
	case broken:
		return end.err
	case gone:
		if !x.reported {
			x.report(reasonClientGone, nil)
		}
		return normalEnd(end.err)
	case proceed, leave:
	}
	return nil
}

// refuse sends the immediate response. Once response headers have passed there is no place for one, and Envoy resets the
// client's stream instead. An error of ours would not do: where Envoy fails open, the exchange would go on.
func (x *exchange) refuse(v *verdict) error {
	frame, err := v.frame(x.facts.shape, x.facts.grpc)
	if err != nil {
		return status.Errorf(codes.Internal, "refusal: %v", err)
	}
	return x.send(frame.WithMetadata(metadataNamespace, x.metadata(nil, v.Reason)))
}

// release gives back whatever is held, in reverse order. It is called at the end of the response and at the end of the
// stream, whatever ended it, and does its work once.
func (x *exchange) release() {
	x.lease.release()
	x.reservation.close()
	x.releaseLane()
	x.tracing.released()
}

// nothingGoverns reports whether the exchange can go on without us.
func (x *exchange) nothingGoverns() bool {
	return x.plan.mayLeave(x.body.over) && (x.body.over || x.unread || x.facts.upgrade) && !x.reservation.held() && !x.permit.held &&
		x.lease.keep == nil && x.replies.empty()
}

// result is how a part of the exchange ended. The zero value means that the exchange goes on.
type result struct {
	kind    resultKind
	verdict *verdict
	err     error
}

type resultKind uint8

const (
	proceed resultKind = iota
	refused            // verdict says how
	gone               // Envoy ended the stream: the exchange is over, or the client left
	leave              // nothing needs us any more: end the stream with OK, Envoy carries on
	broken             // err says what broke
)

func (r result) ok() bool { return r.kind == proceed }

func refusedBy(v *verdict) result {
	if v == nil {
		return result{}
	}
	return result{kind: refused, verdict: v}
}

// endedBy tells Envoy's end of the stream from a fault.
func endedBy(err error) result {
	if normalEnd(err) == nil {
		return result{kind: gone, err: err}
	}
	return result{kind: broken, err: err}
}

// normalEnd turns the ways in which Envoy ends a stream in good order into OK; a real fault stays one.
func normalEnd(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}
