package budget

import (
	"container/heap"
	"slices"
)

// valve bounds the bytes that wait, and is as fair as the queue behind it: when it is full, the latest entry of the key
// with most waiting bytes has to go, which may be the newcomer. Refusing whoever comes would let one key keep it full and
// have all others refused. It is guarded by its controller's lock. The zero value is empty.
type valve struct {
	bytes     int64
	keys      map[string]*valveKey
	largest   largestFirst
	evictions int64 // ever; whoever sees it grow looks at the queue again
}

// valveKey is what one key has waiting. It exists only while something does.
type valveKey struct {
	name    string
	bytes   int64
	entries list[valveEntry] // oldest first
	index   int              // in valve.largest
}

// valveEntry is one waiter or backlog. The zero value has not entered.
type valveEntry struct {
	key   *valveKey // nil outside
	bytes int64
	place node[valveEntry]
	evict func() // refuses the owner, who has left the valve
}

// enter lets e in with bytes more, or reports that it may not wait. Others may be evicted for it.
func (v *valve) enter(e *valveEntry, name string, bytes, most int64, evict func()) bool {
	if !v.makeRoom(name, bytes, most) {
		return false
	}
	e.evict = evict
	e.place.of = e
	e.bytes = bytes
	v.insert(e, name)
	return true
}

// grow raises what e has waiting, or reports that it may not.
func (v *valve) grow(e *valveEntry, bytes, most int64) bool {
	if !v.makeRoom(e.key.name, bytes, most) {
		return false
	}
	e.bytes += bytes
	v.add(e.key, bytes)
	return true
}

// leave takes e out. An entry that is not in is left alone.
func (v *valve) leave(e *valveEntry) {
	k := e.key
	if k == nil {
		return
	}
	e.key = nil
	k.entries.remove(&e.place)
	v.add(k, -e.bytes)
	if k.entries.first == nil {
		delete(v.keys, k.name)
		heap.Remove(&v.largest, k.index)
	}
}

// insert puts e at the end of its key.
func (v *valve) insert(e *valveEntry, name string) {
	k := v.keys[name]
	if k == nil {
		k = &valveKey{name: name}
		if v.keys == nil {
			v.keys = make(map[string]*valveKey)
		}
		v.keys[name] = k
		heap.Push(&v.largest, k)
	}
	e.key = k
	k.entries.pushBack(&e.place)
	v.add(k, e.bytes)
}

func (v *valve) add(k *valveKey, bytes int64) {
	k.bytes += bytes
	v.bytes += bytes
	heap.Fix(&v.largest, k.index)
}

// makeRoom evicts whoever has to go for bytes more of a key, and is false, evicting nobody, where that is the key itself.
func (v *valve) makeRoom(name string, bytes, most int64) bool {
	if bytes > most {
		return false
	}
	type evicted struct {
		entry *valveEntry
		name  string
	}
	var out []evicted
	for v.bytes+bytes > most {
		own := bytes
		if k := v.keys[name]; k != nil {
			own += k.bytes
		}
		if len(v.largest) == 0 || v.largest[0].bytes <= own {
			for _, o := range slices.Backward(out) {
				v.insert(o.entry, o.name)
			}
			return false
		}
		last := v.largest[0].entries.last.of
		out = append(out, evicted{last, last.key.name})
		v.leave(last)
	}
	for _, o := range out {
		v.evictions++
		o.entry.evict()
	}
	return true
}

// largestFirst is a heap of the keys, the one with most waiting bytes first.
type largestFirst []*valveKey

func (l largestFirst) Len() int           { return len(l) }
func (l largestFirst) Less(i, j int) bool { return l[i].bytes > l[j].bytes }

func (l largestFirst) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}

// Push is for package heap.
func (l *largestFirst) Push(x any) {
	k := x.(*valveKey) //nolint:forcetypeassert // nothing else is pushed
	k.index = len(*l)
	*l = append(*l, k)
}

// Pop is for package heap.
func (l *largestFirst) Pop() any {
	last := len(*l) - 1
	k := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return k
}
