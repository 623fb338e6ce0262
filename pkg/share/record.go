package share

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/headgate/headgate/pkg/adaptive"
)

// What a record holds at most, whatever the number of lanes: with that it has less than 3 KiB.
const (
	recordLanes   = 48 // lanes with the most demand; the others as a sum
	recordAnswers = 12 // lanes with the most refusals and failures
	recordFormat  = 1
)

// record is a member's report as the others read it.
type record struct {
	evidence adaptive.Evidence
	lanes    []adaptive.LaneReport
	rest     adaptive.LaneReport // sums of weight and demand of the lanes that are left out
	most     int
}

// newRecord keeps what a record has room for.
func newRecord(r adaptive.Report) record {
	slices.SortFunc(r.Lanes, func(a, b adaptive.LaneReport) int {
		return cmp.Or(cmp.Compare(b.Demand, a.Demand), cmp.Compare(a.Key, b.Key))
	})
	kept := min(len(r.Lanes), recordLanes)
	rec := record{evidence: r.Evidence, lanes: r.Lanes[:kept:kept], most: r.Most}
	for _, l := range r.Lanes[kept:] {
		rec.rest.Weight += l.Weight
		rec.rest.Demand += l.Demand
	}
	bad := rec.evidence.Lanes
	slices.SortFunc(bad, func(a, b adaptive.Answers) int {
		return cmp.Or(cmp.Compare(b.Refused+b.Failed, a.Refused+a.Failed), cmp.Compare(a.Lane, b.Lane))
	})
	rec.evidence.Lanes = bad[:min(len(bad), recordAnswers)]
	return rec
}

func (r *record) encode() []byte {
	w := writer{recordFormat}
	e := &r.evidence
	w.uint(uint64(e.Epoch))
	w.float(e.Busy)
	w.float(e.Capacity)
	w.uint(uint64(e.Completed))
	w.bool(e.Waiting)
	w.uint(uint64(r.most))
	for i := range e.Samples {
		w.samples(&e.Samples[i])
	}
	w.answers(e.Answers)
	w.uint(uint64(len(e.Lanes)))
	for _, a := range e.Lanes {
		w.key(a.Lane)
		w.answers(a)
	}
	w.uint(uint64(len(r.lanes)))
	for _, l := range r.lanes {
		w.key(l.Key)
		w.float(l.Weight)
		w.float(l.Demand)
		w.double(l.Work)
	}
	w.float(r.rest.Weight)
	w.float(r.rest.Demand)
	return w
}

var errRecord = errors.New("a member's record is malformed")

func decode(b []byte) (record, error) {
	var r record
	if len(b) == 0 || b[0] != recordFormat {
		return r, errRecord
	}
	d := reader{b: b[1:]}
	e := &r.evidence
	e.Epoch = uint32(d.uint(math.MaxUint32))
	e.Busy, e.Capacity = d.float(), d.float()
	e.Completed = int(d.uint(math.MaxInt32))
	e.Waiting = d.bool()
	r.most = int(d.uint(math.MaxInt32))
	for i := range e.Samples {
		d.samples(&e.Samples[i])
	}
	e.Answers = d.answers()
	for range d.uint(recordAnswers) {
		key := d.key()
		a := d.answers()
		a.Lane = key
		e.Lanes = append(e.Lanes, a)
	}
	for range d.uint(recordLanes) {
		r.lanes = append(r.lanes, adaptive.LaneReport{Key: d.key(), Weight: d.float(), Demand: d.float(), Work: d.double()})
	}
	r.rest.Weight, r.rest.Demand = d.float(), d.float()
	if d.bad || len(d.b) > 0 {
		return record{}, errRecord
	}
	return r, nil
}

type writer []byte

func (w *writer) uint(v uint64) { *w = binary.AppendUvarint(*w, v) }
func (w *writer) float(v float64) {
	*w = binary.BigEndian.AppendUint32(*w, math.Float32bits(float32(v)))
}
func (w *writer) double(v float64) {
	*w = binary.BigEndian.AppendUint64(*w, math.Float64bits(v))
}
func (w *writer) key(k adaptive.LaneKey) { *w = binary.BigEndian.AppendUint64(*w, uint64(k)) }

func (w *writer) bool(v bool) {
	if v {
		*w = append(*w, 1)
		return
	}
	*w = append(*w, 0)
}

func (w *writer) answers(a adaptive.Answers) {
	w.float(a.All)
	w.float(a.Refused)
	w.float(a.Failed)
}

// samples are the classes that have any.
func (w *writer) samples(s *adaptive.Samples) {
	w.uint(uint64(s.N))
	at := len(*w)
	*w = append(*w, 0)
	for k, sum := range s.Classes {
		if sum.Cost > 0 {
			*w = append(*w, byte(k))
			w.float(sum.Latency)
			w.float(sum.Cost)
			(*w)[at]++
		}
	}
}

// reader reads what writer wrote. What is not there, not finite, negative or above its bound is bad, and reads as zero.
type reader struct {
	b   []byte
	bad bool
}

func (d *reader) take(n int) []byte {
	if len(d.b) < n {
		d.b, d.bad = nil, true
		return make([]byte, n)
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *reader) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > most {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *reader) finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		d.bad = true
		return 0
	}
	return v
}

func (d *reader) float() float64 {
	return d.finite(float64(math.Float32frombits(binary.BigEndian.Uint32(d.take(4)))))
}

func (d *reader) double() float64 {
	return d.finite(math.Float64frombits(binary.BigEndian.Uint64(d.take(8))))
}

func (d *reader) key() adaptive.LaneKey { return adaptive.LaneKey(binary.BigEndian.Uint64(d.take(8))) }
func (d *reader) bool() bool            { return d.take(1)[0] != 0 }

func (d *reader) answers() adaptive.Answers {
	return adaptive.Answers{All: d.float(), Refused: d.float(), Failed: d.float()}
}

func (d *reader) samples(s *adaptive.Samples) {
	s.N = int(d.uint(math.MaxInt32))
	for range d.take(1)[0] {
		k := int(d.take(1)[0])
		sum := adaptive.ClassSum{Latency: d.float(), Cost: d.float()}
		if k >= len(s.Classes) {
			d.bad = true
			return
		}
		s.Classes[k] = sum
	}
}
