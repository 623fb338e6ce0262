package adaptive

import "math"

// order keeps the lanes that have someone waiting, by the price of their head and, within a price, by virtual time. A
// tournament over the prices finds both the lane furthest behind and the one furthest behind among those whose head fits
// into what is free, each in a number of steps that depends on MaxCost and the lanes of one price, not on all lanes.
type order struct {
	best  [2 * leaves]float64 // best[1] is the root, best[leaves+cost] the smallest key of the heads at that cost
	heaps [MaxCost + 1][]entry
}

// leaves is the power of two above MaxCost.
const leaves = 1024

// entry repeats the key of its lane so that comparing touches one array only.
type entry struct {
	key float64
	l   *lane
}

func newOrder() *order {
	o := new(order)
	for i := range o.best {
		o.best[i] = math.Inf(1)
	}
	return o
}

// push enters a lane under the key and the head it has now.
func (o *order) push(l *lane, key float64) {
	l.key, l.headCost = key, l.head.cost
	h := append(o.heaps[l.headCost], entry{})
	o.heaps[l.headCost] = h
	up(h, len(h)-1, entry{key, l})
	o.refresh(l.headCost)
}

// remove takes a lane out.
func (o *order) remove(l *lane) {
	h := o.heaps[l.headCost]
	last := len(h) - 1
	moved := h[last]
	h[last] = entry{}
	h = h[:last]
	o.heaps[l.headCost] = h
	if moved.l != l {
		settle(h, l.slot, moved)
	}
	o.refresh(l.headCost)
}

// fix moves a lane to a new key, or to the price of a new head.
func (o *order) fix(l *lane, key float64) {
	if l.head.cost != l.headCost {
		o.remove(l)
		o.push(l, key)
		return
	}
	l.key = key
	settle(o.heaps[l.headCost], l.slot, entry{key, l})
	o.refresh(l.headCost)
}

// first is the lane furthest behind, nil when nobody waits.
func (o *order) first() *lane { return o.at(1) }

// firstWithin is the lane furthest behind among those whose head costs at most free.
func (o *order) firstWithin(free int) *lane {
	if free <= 0 {
		return nil
	}
	best := 0
	for i := leaves + min(free, MaxCost) + 1; i > 1; i /= 2 {
		if i%2 == 1 && (best == 0 || o.best[i-1] < o.best[best]) {
			best = i - 1
		}
	}
	if best == 0 {
		return nil
	}
	return o.at(best)
}

// at follows the smallest key from node i down to its lane.
func (o *order) at(i int) *lane {
	if math.IsInf(o.best[i], 1) {
		return nil
	}
	for i < leaves {
		i *= 2
		if o.best[i+1] < o.best[i] {
			i++
		}
	}
	return o.heaps[i-leaves][0].l
}

// refresh carries the smallest key at a cost towards the root, as far as it changes anything.
func (o *order) refresh(cost int) {
	key := math.Inf(1)
	if h := o.heaps[cost]; len(h) > 0 {
		key = h[0].key
	}
	i := leaves + cost
	for o.best[i] != key {
		o.best[i] = key
		if i == 1 {
			return
		}
		key = min(key, o.best[i^1])
		i /= 2
	}
}

const arity = 4

// settle puts e into slot i, from where it may have to move either way.
func settle(h []entry, i int, e entry) {
	if i > 0 && e.key < h[(i-1)/arity].key {
		up(h, i, e)
		return
	}
	down(h, i, e)
}

func up(h []entry, i int, e entry) {
	for i > 0 {
		parent := (i - 1) / arity
		if h[parent].key <= e.key {
			break
		}
		h[i] = h[parent]
		h[i].l.slot = i
		i = parent
	}
	h[i] = e
	e.l.slot = i
}

func down(h []entry, i int, e entry) {
	for {
		child := i*arity + 1
		if child >= len(h) {
			break
		}
		for j := child + 1; j < min(child+arity-1+1, len(h)); j++ {
			if h[j].key < h[child].key {
				child = j
			}
		}
		if e.key <= h[child].key {
			break
		}
		h[i] = h[child]
		h[i].l.slot = i
		i = child
	}
	h[i] = e
	e.l.slot = i
}
