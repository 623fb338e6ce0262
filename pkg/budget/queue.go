package budget

// maxPassed is how often a waiter that does not fit is passed over before capacity is reserved for it.
const maxPassed = 2

// queue holds the waiters: first in, first out within a key, and the keys in the order of their turns. It is guarded by
// its controller's lock. The zero value is empty.
type queue struct {
	lanes   map[string]*lane
	turns   list[lane]
	waiting int
	valve   valve // bounds the waiting bytes
}

// lane is one key's waiters. It exists only while somebody waits in it.
type lane struct {
	key     string
	waiters list[Waiter]
	waiting int
	turn    node[lane]
}

func (l *lane) head() *Waiter { return l.waiters.first.of }

func (q *queue) empty() bool { return q.waiting == 0 }

// push lets w join its key: a growth behind the key's other growths, a new reservation at the end.
func (q *queue) push(w *Waiter) {
	l := q.lanes[w.key]
	if l == nil {
		l = &lane{key: w.key}
		l.turn.of = l
		if q.lanes == nil {
			q.lanes = make(map[string]*lane)
		}
		q.lanes[w.key] = l
		q.turns.pushBack(&l.turn)
	}
	var before *node[Waiter]
	if w.grows != nil {
		for before = l.waiters.first; before != nil && before.of.grows != nil; {
			before = before.next
		}
	}
	w.lane, w.place.of = l, w
	l.waiters.insertBefore(before, &w.place)
	l.waiting++
	q.waiting++
}

// remove lets w leave from wherever it stands. Its key keeps its turn, unless w was the last.
func (q *queue) remove(w *Waiter) {
	l := w.lane
	l.waiters.remove(&w.place)
	w.lane = nil
	l.waiting--
	q.waiting--
	q.valve.leave(&w.entry)
	if l.waiting == 0 {
		q.turns.remove(&l.turn)
		delete(q.lanes, l.key)
	}
}

// next removes and returns the waiter whose turn it is, or nil when nobody may be served. Those who are barred are left out, as
// if they did not wait. fits and barred must not depend on anything but the waiter's needs and the capacity.
func (q *queue) next(fits, barred func(*Waiter) bool) *Waiter {
	reserved := false
	for l := range q.turns.all() {
		w := l.head()
		switch {
		case barred(w):
		case !fits(w):
			reserved = reserved || w.passed >= maxPassed
		case !reserved || w.grows != nil:
			q.serve(w, barred)
			return w
		}
	}
	return nil
}

// serve ends w's turn: those before it, who did not fit, have been passed over, and its key goes to the end.
func (q *queue) serve(w *Waiter, barred func(*Waiter) bool) {
	l := w.lane
	if w.grows == nil {
		for before := range q.turns.all() {
			if before == l {
				break
			}
			if !barred(before.head()) {
				before.head().passed++
			}
		}
	}
	q.turns.remove(&l.turn)
	q.turns.pushBack(&l.turn)
	q.remove(w)
}

// all returns the waiters in the order of their keys' turns.
func (q *queue) all() []*Waiter {
	all := make([]*Waiter, 0, q.waiting)
	for l := range q.turns.all() {
		for w := range l.waiters.all() {
			all = append(all, w)
		}
	}
	return all
}
