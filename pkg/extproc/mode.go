package extproc

import "github.com/headgate/headgate/pkg/extproc/wire"

// mode is what the announced protocol lets an exchange do.
type mode struct {
	request  wire.BodyMode
	response wire.BodyMode
	early    bool // body chunks come without waiting for the headers' answer, and no upstream is contacted before it
}

// readMode takes the announcement of the first message. A proxy that announces nothing is taken for one that streams
// and waits for the headers' answer: the only reading that cannot make both sides wait for each other.
func readMode(p wire.Protocol) mode {
	if !p.Known {
		return mode{request: wire.BodyStreamed}
	}
	return mode{
		request: p.RequestBody, response: p.ResponseBody,
		early: p.EarlyBody && p.RequestBody == wire.BodyStreamed,
	}
}

// sendsBody reports whether request body messages come at all.
func (m mode) sendsBody() bool { return m.request != wire.BodyNone }

// echoes reports whether a phase's chunks must be handed back, since Envoy has given them away.
func (m mode) echoes(p wire.Phase) bool {
	body := m.request
	if p == wire.ResponseBody {
		body = m.response
	}
	return body == wire.BodyFullDuplex || body == wire.BodyGRPC
}

// mayLeave reports whether the stream may end with OK before the end of the body: not while Envoy relies on chunks that
// it has given away, or has yet to hand over the buffered body.
func (m mode) mayLeave(bodyOver bool) bool {
	return bodyOver || m.request == wire.BodyStreamed || m.request == wire.BodyNone
}
