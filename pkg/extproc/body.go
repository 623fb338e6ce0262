package extproc

import (
	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/extproc/bodyscan"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// body is the evidence about a request's body. Its bytes are counted and scanned as they pass, never stored.
type body struct {
	declared int64 // undeclared where unknown
	seen     int64 // bytes that really arrived
	over     bool  // nothing more will come
	scans    bool  // the scan may still learn something
	scanner  bodyscan.Scanner
}

// add counts a chunk and scans it.
func (b *body) add(m *wire.Message) {
	b.seen += int64(m.BodyLen())
	if b.scans {
		m.EachChunk(b.scanner.Write)
		b.scans = !b.scanner.NotJSON()
	}
}

// end notes that nothing more will come.
func (b *body) end() {
	if !b.over {
		b.over = true
		b.scanner.Close()
	}
}

// bytes is what the body is charged for: what it declares or, once that is exceeded or the body is over, what arrived.
func (b *body) bytes() int64 {
	if b.over {
		return b.seen
	}
	return max(b.declared, b.seen)
}

// arrived reports that everything declared is there, although the end of the stream may come later, in an empty chunk,
// with trailers or not at all.
func (b *body) arrived() bool { return b.declared >= 0 && b.seen >= b.declared }

// learned reports that the scan can learn nothing more: the body is no JSON, its document has ended, or it is too much.
func (b *body) learned() bool { return !b.scans || b.scanner.Done() }

// cost prices the body for its lane. The scan's token estimate holds for the whole body only; else bytes decide.
func (b *body) cost() int {
	f := b.scanner.Features()
	if f.Exhausted {
		return adaptive.MaxCost // what was counted is a lower bound only
	}
	priced := adaptive.Features{Bytes: b.bytes()}
	if f.Known {
		priced.Messages, priced.Tools, priced.Fanout = int64(f.Messages), int64(f.Tools), int64(f.Fanout)
		priced.Stream = f.Stream
	}
	if f.Complete {
		priced.Tokens = f.Tokens
	}
	return adaptive.Cost(priced)
}

// tokens of the prompt, as far as is known.
func (b *body) tokens() int64 {
	if f := b.scanner.Features(); f.Complete {
		return f.Tokens
	}
	return adaptive.TokensOf(b.bytes())
}

// structureHeavy reports whether the body is heavy by what it contains, whatever its bytes.
func (b *body) structureHeavy(s budget.StructureSettings) bool {
	f := b.scanner.Features()
	return f.Known && (f.Exhausted || f.Messages >= s.Messages || f.Tools >= s.Tools || f.Tokens >= int64(s.Tokens))
}

// tooManyMessages reports whether the opt-in cap on messages is exceeded, or may be where what cannot be counted is refused.
func (b *body) tooManyMessages(s budget.StructureSettings) bool {
	if s.HardMaxMessages == 0 {
		return false
	}
	f := b.scanner.Features()
	uncountable := f.Exhausted || (b.seen > 0 && !f.Known && (!b.scans || b.over))
	return f.Messages > s.HardMaxMessages || (uncountable && s.Uncountable == budget.RefuseUncountable)
}

// needsNoBody reports a body that nothing would be done with: its route cluster has neither lanes nor leases, and it declares no
// more bytes than budget.SmallBody, which Envoy holds the client to.
func (x *exchange) needsNoBody() bool {
	bytes := &x.policy.config.Bytes
	return x.settings.Lanes.Mode == adaptive.Off && !x.leaseGoverns() && bytes.Structure.HardMaxMessages == 0 && !x.facts.upgrade &&
		x.body.declared >= 0 && x.body.declared <= bytes.SmallBody()
}
