package budget

// valve bounds the bytes that wait, and is as fair as the queue behind it: when it is full, the latest entry of the key
// with most waiting bytes has to go, which may be the newcomer. Refusing whoever comes would let one key keep it full and
// have all others refused. It is guarded by its controller's lock. The zero value is empty.
type valve struct {
	bytes     int64
	keys      map[string]*valveKey
	evictions int64 // ever; whoever sees it grow looks at the queue again
}

// valveKey is what one key has waiting. It exists only while something does.
type valveKey struct {
	bytes   int64
	entries list[valveEntry] // oldest first
}

// valveEntry is one waiter or backlog. The zero value has not entered.
type valveEntry struct {
	key   *valveKey
	name  string
	bytes int64
	place node[valveEntry]
	evict func() // refuses the owner; it must leave the valve
}

// enter lets e in with bytes more, or reports that it may not wait. Others may be evicted for it.
func (v *valve) enter(e *valveEntry, name string, bytes, most int64, evict func()) bool {
	if !v.makeRoom(name, bytes, most, e) {
		return false
	}
	k := v.keys[name]
	if k == nil {
		k = &valveKey{}
		if v.keys == nil {
			v.keys = make(map[string]*valveKey)
		}
		v.keys[name] = k
	}
	e.key, e.name, e.evict = k, name, evict
	e.place.of = e
	k.entries.pushBack(&e.place)
	v.add(e, bytes)
	return true
}

// grow raises what e has waiting, or reports that it may not.
func (v *valve) grow(e *valveEntry, bytes, most int64) bool {
	if !v.makeRoom(e.name, bytes, most, e) {
		return false
	}
	v.add(e, bytes)
	return true
}

// leave takes e out. An entry that is not in is left alone.
func (v *valve) leave(e *valveEntry) {
	if e.key == nil {
		return
	}
	v.add(e, -e.bytes)
	e.key.entries.remove(&e.place)
	if e.key.entries.first == nil {
		delete(v.keys, e.name)
	}
	e.key = nil
}

func (v *valve) add(e *valveEntry, bytes int64) {
	e.bytes += bytes
	e.key.bytes += bytes
	v.bytes += bytes
}

// makeRoom evicts until bytes more of a key fit, and is false where that key itself has most waiting.
func (v *valve) makeRoom(name string, bytes, most int64, newcomer *valveEntry) bool {
	if bytes > most {
		return false
	}
	for v.bytes+bytes > most {
		own := bytes
		if k := v.keys[name]; k != nil {
			own += k.bytes
		}
		victim := v.latestOfLargest(own, newcomer)
		if victim == nil {
			return false
		}
		v.evictions++
		victim.evict()
	}
	return true
}

// latestOfLargest is the latest entry of the key that has most waiting, nil where none has more than own.
func (v *valve) latestOfLargest(own int64, except *valveEntry) *valveEntry {
	var largest *valveKey
	for _, k := range v.keys {
		if k != except.key && k.bytes > own && (largest == nil || k.bytes > largest.bytes) {
			largest = k
		}
	}
	if largest == nil {
		return nil
	}
	return largest.entries.last.of
}
