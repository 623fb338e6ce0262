package extproc

import "github.com/headgate/headgate/pkg/extproc/wire"

// metadataNamespace is the namespace of the dynamic metadata that access logs read.
const metadataNamespace = "headgate"

// reply is an answer that is owed: count times the same one.
type reply struct {
	phase wire.Phase
	echo  wire.Frame // hands a chunk back; nil continues
	count int
}

// replies are the answers owed, in the order of their messages.
type replies struct {
	owed []reply
	room [4]reply // what owed begins in: more are seldom owed at a time
}

func (r *replies) empty() bool { return len(r.owed) == 0 }

// holdBody reports whether an answer that is owed holds bytes of a body.
func (r *replies) holdBody() bool {
	for i := range r.owed {
		if r.owed[i].echo != nil {
			return true
		}
	}
	return false
}

// push owes the answer to a message. An echo owns the chunk's bytes; the exchange sends it before it takes the next
// chunk, or withholds it, so that one chunk is kept at the most.
func (r *replies) push(m *wire.Message, echo bool) {
	if r.owed == nil {
		r.owed = r.room[:0]
	}
	if echo && (m.Phase == wire.RequestBody || m.Phase == wire.ResponseBody) {
		for _, frame := range wire.Echo(m) {
			r.owed = append(r.owed, reply{phase: m.Phase, echo: frame, count: 1})
		}
		return
	}
	if n := len(r.owed); n > 0 && r.owed[n-1].phase == m.Phase && r.owed[n-1].echo == nil {
		r.owed[n-1].count++
		return
	}
	r.owed = append(r.owed, reply{phase: m.Phase, count: 1})
}

// flush sends the answers that may go out by now.
func (x *exchange) flush() error {
	for !x.replies.empty() && x.mayAnswer() {
		next := &x.replies.owed[0]
		if err := x.send(x.frameOf(next)); err != nil {
			return err
		}
		if next.count--; next.count == 0 {
			*next = reply{} // its bytes are no longer wanted
			x.replies.owed = x.replies.owed[1:]
		}
	}
	if x.replies.empty() {
		x.replies.owed = nil
	}
	return nil
}

// mayAnswer is back-pressure: nothing is answered while bytes are waited for. Before the decision, a plan that has to
// answer the headers first lets the body pass up to the message that completes the evidence.
func (x *exchange) mayAnswer() bool {
	switch {
	case x.reservation.waiting():
		return false
	case x.decided:
		return true
	}
	return !x.plan.withholdsHeaders() && !x.evidenceIsIn()
}

// frameOf encodes an answer. The first one after the decision carries the metadata.
func (x *exchange) frameOf(r *reply) wire.Frame {
	frame := r.echo
	switch {
	case frame != nil:
	case r.phase == wire.RequestHeaders:
		frame = wire.Headers(r.phase, x.mutation())
	default:
		frame = wire.Continue(r.phase)
	}
	if x.decided && !x.described {
		x.described = true
		var room [metadataValues]wire.Value
		frame = frame.WithMetadata(metadataNamespace, x.metadata(room[:0], reasonAdmitted))
	}
	return frame
}

// mutation changes the forwarded headers: what clients must not say is removed, what the gates decided is set. A parent token
// is the same whether the decision comes before the headers' answer or after it.
func (x *exchange) mutation() wire.Mutation {
	m := wire.Mutation{Remove: x.facts.remove, Set: x.facts.set}
	x.lease.mutate(&m)
	if x.settings.Fanout.IssueParent {
		if token := x.parentToken(); token != "" {
			m.Set = append(m.Set, wire.Header{Name: headerParent, Value: token})
		} else {
			m.Remove = append(m.Remove, headerParent) // nested as deeply as allowed: the one that came ends here
		}
	}
	m.Remove = without(m.Remove, m.Set)
	return m
}

// without leaves out the names that are set: a set overwrites, and Envoy removes after it sets.
func without(remove []string, set []wire.Header) []string {
	var kept []string
	for _, name := range remove {
		overwritten := false
		for _, h := range set {
			overwritten = overwritten || h.Name == name
		}
		if !overwritten {
			kept = append(kept, name)
		}
	}
	return kept
}

// metadataValues is how many values the metadata has at the most.
const metadataValues = 8

// metadata appends what access logs can show of the decision.
func (x *exchange) metadata(values []wire.Value, reason string) []wire.Value {
	decision := "refused"
	if x.verdict == nil {
		decision = "admitted"
	}
	d := x.decision(reason)
	lane := d.Lane
	if lane == "" {
		lane = anonymousLane
	}
	values = append(values,
		wire.Value{Key: "decision", Text: decision},
		wire.Value{Key: "reason", Text: reason},
		wire.Value{Key: "bytes", Number: float64(d.Bytes)},
		wire.Value{Key: "cost", Number: float64(d.Cost)},
		wire.Value{Key: "lane", Text: lane},
		wire.Value{Key: "wait_ms", Number: float64(d.Waited.Milliseconds())},
	)
	if x.facts.level != "" {
		values = append(values, wire.Value{Key: "level", Text: x.facts.level})
	}
	if x.permit.witness != "" {
		values = append(values, wire.Value{Key: witnessKey, Text: x.permit.witness})
	}
	return values
}

func (x *exchange) send(f wire.Frame) error { return x.stream.SendMsg(f.Outgoing()) }
