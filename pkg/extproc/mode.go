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

// showsProgress reports whether silence means that the client sends nothing. A buffering Envoy is silent until the body
// is all there, or for good once it has handed over a part.
func (m mode) showsProgress() bool {
	return m.request == wire.BodyStreamed || m.request == wire.BodyFullDuplex || m.request == wire.BodyGRPC
}
