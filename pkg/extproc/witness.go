package extproc

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// The witness is a second ext_proc filter that gets nothing but the response body. Its stream opens with the first byte
// of that, and ends with one answer. Many servers answer the headers of a response at once, so this is the only cheap
// way to see the first token. The filter of the exchange names the exchange in the dynamic metadata, which Envoy forwards to
// the witness. Nothing depends on a witness: one that is late, unknown or missing changes nothing but what the limit
// learns.

// witnessKey is the name of the exchange in the dynamic metadata.
const witnessKey = "witness"

var witnessPath = []string{metadataNamespace, witnessKey}

const (
	// maxWitnessed bounds the exchanges that wait for their witness.
	maxWitnessed = 100_000
	// missesTolerated is how many responses in a row may lack their witness before the cluster counts as having none.
	missesTolerated = 20
)

// isWitness recognises a witness by its first message.
func isWitness(m *wire.Message) bool {
	return m.Phase == wire.ResponseBody && readPlan(m.Protocol).watchesResponse()
}

// witness tells the exchange it names of its first token and ends.
func (x *exchange) witness(first *wire.Message) error {
	id := first.Metadata(witnessPath)
	first.Free()
	x.server.witnesses.arrive(id)
	return x.send(wire.Continue(wire.ResponseBody))
}

// witnesses are the exchanges that wait for theirs.
type witnesses struct {
	prefix string // of this process: another replica may get the witness
	next   atomic.Uint64

	mu       sync.Mutex
	waiting  map[string]witnessed
	clusters map[string]*sightings
}

// witnessed is an exchange that waits for its first token.
type witnessed struct {
	permit *adaptive.Permit
	by     *sightings
}

// sightings are a route cluster's witnesses, seen and missed.
type sightings struct {
	headers   headerTiming
	responses atomic.Uint64 // counts to the next sample
	working   atomic.Bool
	misses    atomic.Int32  // in a row
	signal    atomic.Uint32 // the last one reported, as an index of signals
}

var signals = [...]adaptive.Signal{"", adaptive.FromHeaders, adaptive.FromWitness, adaptive.FromBody}

func newWitnesses() witnesses {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return witnesses{prefix: hex.EncodeToString(random[:]), waiting: map[string]witnessed{}, clusters: map[string]*sightings{}}
}

// of returns the sightings of a route cluster, whose name is bounded by clusterName.
func (w *witnesses) of(cluster string) *sightings {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.clusters[cluster]
	if s == nil {
		s = &sightings{}
		w.clusters[cluster] = s
	}
	return s
}

// expect names the exchange of a permit; "" where too many are waiting.
func (w *witnesses) expect(p *adaptive.Permit, by *sightings) string {
	id := w.prefix + strconv.FormatUint(w.next.Add(1), 36)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) >= maxWitnessed {
		return ""
	}
	w.waiting[id] = witnessed{p, by}
	return id
}

// arrive takes in a witness. Only the first of an exchange counts.
func (w *witnesses) arrive(id string) {
	if found, ok := w.take(id); ok {
		found.by.working.Store(true)
		found.by.misses.Store(0)
		found.permit.FirstToken()
	}
}

func (w *witnesses) take(id string) (witnessed, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, ok := w.waiting[id]
	delete(w.waiting, id)
	return found, ok
}

// expectWitness names the exchange for its witness, where the cluster wants one and the sample falls on this one.
func (x *exchange) expectWitness() {
	lanes := &x.settings.Lanes
	if x.moot || x.facts.upgrade || x.plan.showsResponse() || !lanes.Witnessed() {
		return
	}
	if n := x.permit.sightings.responses.Add(1); (n-1)%uint64(lanes.FirstTokenSample) == 0 { //nolint:gosec // positive
		x.permit.witness = x.server.witnesses.expect(&x.permit.adaptive, x.permit.sightings)
	}
}

// endWitness ends the wait for a witness. An answer with a body that ended without one is a miss.
func (x *exchange) endWitness() {
	p := &x.permit
	if p.witness == "" {
		return
	}
	_, missing := x.server.witnesses.take(p.witness)
	p.witness = ""
	if missing && x.outcome == adaptive.OK && !x.noBody && p.sightings.misses.Add(1) >= missesTolerated {
		p.sightings.working.Store(false)
	}
}

// signal is where the cluster's first tokens are seen: by body messages where Envoy sends them, by the witness once one
// has been seen, by the headers otherwise.
func (x *exchange) signal() adaptive.Signal {
	at, s := uint32(1), x.permit.sightings
	switch {
	case x.plan.showsResponse():
		at = 3
	case s.working.Load() && x.settings.Lanes.Witnessed():
		at = 2
	}
	if before := s.signal.Swap(at); before != at {
		x.server.log.Info("where first tokens are seen has changed", "cluster", x.facts.cluster, "signal", signals[at], "before", signals[before])
	}
	return signals[at]
}
