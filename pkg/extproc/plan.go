package extproc

import "github.com/headgate/headgate/pkg/extproc/wire"

// plan is what the announced processing mode means for an exchange. It is the only place that asks about Envoy's modes.
type plan struct {
	request  wire.BodyMode
	response wire.BodyMode
	early    bool // body chunks come without waiting for the headers' answer
}

// readPlan takes the announcement of the first message. A proxy that announces nothing is taken for one that streams
// and waits for the headers' answer: the only reading that cannot make both sides wait for each other.
func readPlan(p wire.Protocol) plan {
	if !p.Known {
		return plan{request: wire.BodyStreamed}
	}
	return plan{
		request: p.RequestBody, response: p.ResponseBody,
		early: p.EarlyBody && p.RequestBody == wire.BodyStreamed,
	}
}

// withholdsHeaders reports whether the headers' answer can wait for the decision. Envoy then contacts no upstream before
// it. In all other plans a decision that needs the body is taken on the message that completes it.
func (p plan) withholdsHeaders() bool { return p.early }

// sendsBody reports whether request body messages come at all.
func (p plan) sendsBody() bool { return p.request != wire.BodyNone }

// forwardsEarly reports whether body bytes reach the upstream before the decision.
func (p plan) forwardsEarly() bool {
	return !p.early && (p.request == wire.BodyStreamed || p.echoes(wire.RequestBody))
}

// showsResponse reports whether the response body comes as it is sent.
func (p plan) showsResponse() bool {
	return p.response == wire.BodyStreamed || p.echoes(wire.ResponseBody)
}

// watchesResponse reports whether the response body is all that comes, to be seen and not to be changed.
func (p plan) watchesResponse() bool {
	return p.request == wire.BodyNone && p.response == wire.BodyStreamed
}

// ends reports whether m is the last message of the request body. A buffering Envoy sends one message with all of the
// body, and does not mark it as the last when trailers follow.
func (p plan) ends(m *wire.Message) bool { return m.EndOfStream || p.request == wire.BodyBuffered }

// completes reports whether b is all the evidence that the plan can give before the decision.
func (p plan) completes(b *body, window int64) bool {
	switch {
	case b.over || b.learned() || b.arrived():
		return true
	case p.request == wire.BodyBufferedPartial:
		return b.seen > 0 // what did not fit Envoy's buffer never comes
	}
	return b.seen >= window
}

// echoes reports whether a phase's chunks must be handed back, since Envoy has given them away.
func (p plan) echoes(phase wire.Phase) bool {
	mode := p.request
	if phase == wire.ResponseBody {
		mode = p.response
	}
	return mode == wire.BodyFullDuplex || mode == wire.BodyGRPC
}

// showsProgress reports whether silence means that the client sends nothing. A buffering Envoy is silent until the body
// is all there, or for good once it has handed over a part.
func (p plan) showsProgress() bool {
	return p.request == wire.BodyStreamed || p.echoes(wire.RequestBody)
}

// mayLeave reports whether the stream may end with OK: not while Envoy relies on chunks that it has given away, of
// either side, or has yet to hand over the buffered body.
func (p plan) mayLeave(bodyOver bool) bool {
	passive := p.request == wire.BodyStreamed || p.request == wire.BodyNone
	return (bodyOver || passive) && !p.echoes(wire.ResponseBody)
}
