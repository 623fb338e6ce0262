package adaptive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Learner is what a group knows: the limit of all its members together, and from what it goes on to the next one. It is a value
// that members hand to one another; whoever steps it, the result is the same.
type Learner struct {
	state   state
	curves  [populations]curve
	reason  StepReason
	epoch   uint32 // grows when the limit is lowered, or begins to bind: samples of requests from before are about another limit
	version uint64
}

// NewLearner begins at a limit.
func NewLearner(limit int) *Learner {
	l := &Learner{state: state{limit: limit}, reason: StepHold}
	for i := range l.curves {
		l.curves[i] = newCurve()
	}
	return l
}

// Limit of all members together.
func (l *Learner) Limit() int { return l.state.limit }

// Version counts the steps.
func (l *Learner) Version() uint64 { return l.version }

// Reason of the last step.
func (l *Learner) Reason() StepReason { return l.reason }

// Step takes in what the members have seen in a window. The bounds of the settings are those of the group; pressure on a member
// lowers that member's part only.
func (l *Learner) Step(s Settings, seen []Evidence) {
	e := l.sum(seen)
	l.state, l.reason = step(s, l.state, e)
	for i := range l.curves {
		l.state.rescale(population(i), l.curves[i].learn())
	}
	if l.state.since == 0 {
		l.epoch++
	}
	l.version++
}

func (l *Learner) sum(seen []Evidence) evidence {
	var e evidence
	var busy, capacity float64
	for i := range seen {
		m := &seen[i]
		busy, capacity = busy+m.Busy, capacity+m.Capacity
		e.completed += m.Completed
		e.waiting = e.waiting || m.Waiting
		if m.Epoch == l.epoch {
			l.pool(&e, m)
		}
	}
	if capacity > 0 {
		e.utilization = busy / capacity
	}
	e.others = others(seen)
	return e
}

// pool adds a member's samples to the window's.
func (l *Learner) pool(e *evidence, m *Evidence) {
	for i := range m.Samples {
		e.fresh[i].n += m.Samples[i].N
		for k, sum := range m.Samples[i].Classes {
			if sum.Cost > 0 {
				e.fresh[i].latency += sum.Latency
				e.fresh[i].expected += l.curves[i].pool(k, sum)
			}
		}
	}
}

// others sums the answers of all lanes of all members but the lane with most refusals and failures (see othersLocked).
func others(seen []Evidence) answers {
	var sum answers
	lanes := make(map[LaneKey]answers)
	for i := range seen {
		sum = sum.plus(seen[i].Answers)
		for _, a := range seen[i].Lanes {
			lanes[a.Lane] = lanes[a.Lane].plus(a)
		}
	}
	var worst answers
	for _, a := range lanes {
		if a.refused+a.failed > worst.refused+worst.failed || a.refused+a.failed == worst.refused+worst.failed && a.all > worst.all {
			worst = a
		}
	}
	return sum.without(worst)
}

func (a answers) plus(b Answers) answers {
	return answers{all: a.all + b.All, refused: a.refused + b.Refused, failed: a.failed + b.Failed}
}

// numbers are pointers to all that the state consists of, for its record.
func (st *state) numbers() []any {
	n := []any{
		&st.limit, (*uint8)(&st.speaker), &st.silent, &st.since, &st.steady, &st.bound, &st.right, &st.learning, &st.found, &st.proven,
		&st.growth.ceiling, &st.growth.part, &st.growth.age,
	}
	for i := range st.latency {
		l := &st.latency[i]
		n = append(n, &l.short, &l.count, &l.long, &l.seen, &l.cv2, &l.windows, &l.took)
	}
	t := &st.trial
	return append(n, &t.from, &t.above, &t.latency, &t.count, &t.took, &t.windows, &t.spent, &t.watch, &t.search)
}

// learnerFormat is the first byte of a learner's record; another is another layout. It changes with state and curve.
const learnerFormat = 1

var errRecord = errors.New("record of a group's state is malformed")

// AppendBinary appends the learner's record: format, version, epoch, reason, the state's numbers and the curves' sums.
func (l *Learner) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, learnerFormat, byte(len(l.reason)))
	b = append(b, l.reason...)
	b = binary.BigEndian.AppendUint64(b, l.version)
	b = binary.BigEndian.AppendUint32(b, l.epoch)
	for _, p := range l.state.numbers() {
		b = appendNumber(b, p)
	}
	for i := range l.curves {
		b = l.curves[i].append(b)
	}
	return b, nil
}

func appendNumber(b []byte, p any) []byte {
	var v float64
	switch p := p.(type) {
	case *int:
		v = float64(*p)
	case *uint8:
		v = float64(*p)
	case *float64:
		v = *p
	case *time.Duration:
		v = float64(*p)
	case *bool:
		if *p {
			v = 1
		}
	default:
		panic(fmt.Sprintf("a state has a %T", p))
	}
	return binary.BigEndian.AppendUint64(b, math.Float64bits(v))
}

// UnmarshalBinary reads a record. A record that is none leaves the learner as it was.
func (l *Learner) UnmarshalBinary(b []byte) error {
	if len(b) < 2 || b[0] != learnerFormat || len(b) < 2+int(b[1])+12 {
		return errRecord
	}
	n := NewLearner(1)
	n.reason = StepReason(b[2 : 2+int(b[1])])
	b = b[2+int(b[1]):]
	n.version, n.epoch, b = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), b[12:]
	for _, p := range n.state.numbers() {
		if len(b) < 8 || !readNumber(p, math.Float64frombits(binary.BigEndian.Uint64(b))) {
			return errRecord
		}
		b = b[8:]
	}
	for i := range n.curves {
		var ok bool
		if b, ok = n.curves[i].read(b); !ok {
			return errRecord
		}
	}
	if len(b) > 0 || n.state.limit < 1 || n.state.limit > maxQuantity || n.state.speaker >= populations {
		return errRecord
	}
	*l = *n
	return nil
}

func readNumber(p any, v float64) bool {
	const exact = 1 << 62
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	switch p := p.(type) {
	case *float64:
		*p = v
		return true
	case *bool:
		*p = v != 0
		return true
	case *uint8:
		*p = uint8(min(max(v, 0), math.MaxUint8))
		return true
	case *int:
		*p = int(v)
	case *time.Duration:
		*p = time.Duration(v)
	}
	return math.Abs(v) < exact
}
