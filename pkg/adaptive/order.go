package adaptive

import "math"

// order keeps the flows of a level that have someone waiting who may be served, by the price of their head and, within a price,
// by virtual time. A tournament over the prices finds both the flow furthest behind and the one furthest behind among those
// whose head fits into what is free, each in a number of steps that depends on MaxCost and the flows of one price, not on all.
type order struct {
	best  [2 * leaves]float64 // best[1] is the root, best[leaves+cost] the smallest key of the heads at that cost
	heaps [MaxCost + 1][]entry
}

// leaves is the power of two above MaxCost.
const leaves = 1024

// entry repeats the key of its flow so that comparing touches one array only.
type entry struct {
	key float64
	f   *flow
}

func newOrder() *order {
	o := new(order)
	for i := range o.best {
		o.best[i] = math.Inf(1)
	}
	return o
}

// push enters a flow under the key and the head it has now.
func (o *order) push(f *flow, key float64) {
	f.key, f.headCost = key, f.head.cost
	h := append(o.heaps[f.headCost], entry{})
	o.heaps[f.headCost] = h
	up(h, len(h)-1, entry{key, f})
	o.refresh(f.headCost)
}

// remove takes a flow out.
func (o *order) remove(f *flow) {
	h := o.heaps[f.headCost]
	last := len(h) - 1
	moved := h[last]
	h[last] = entry{}
	h = h[:last]
	o.heaps[f.headCost] = h
	if moved.f != f {
		settle(h, f.slot, moved)
	}
	o.refresh(f.headCost)
}

// fix moves a flow to a new key, or to the price of a new head.
func (o *order) fix(f *flow, key float64) {
	if f.head.cost != f.headCost {
		o.remove(f)
		o.push(f, key)
		return
	}
	f.key = key
	settle(o.heaps[f.headCost], f.slot, entry{key, f})
	o.refresh(f.headCost)
}

// firstWithin is the flow furthest behind among those whose head costs at most free.
func (o *order) firstWithin(free int) *flow {
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

// at follows the smallest key from node i down to its flow.
func (o *order) at(i int) *flow {
	if math.IsInf(o.best[i], 1) {
		return nil
	}
	for i < leaves {
		i *= 2
		if o.best[i+1] < o.best[i] {
			i++
		}
	}
	return o.heaps[i-leaves][0].f
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
		h[i].f.slot = i
		i = parent
	}
	h[i] = e
	e.f.slot = i
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
		h[i].f.slot = i
		i = child
	}
	h[i] = e
	e.f.slot = i
}
