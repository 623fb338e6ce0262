package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// values are label values, in the order of the keys; unused ones are empty.
type values [3]string

// cell is what is counted under one set of labels, and the set itself in the forms that the API takes.
type cell struct {
	count, bytes atomic.Int64
	set          attribute.Set
	record       []metric.RecordOption
	observe      []metric.ObserveOption
}

// cells are the cells of one set of label keys. Looking one up takes no lock and, once it is known, allocates nothing.
// The caller answers for the number of values being bounded.
type cells struct {
	keys    []attribute.Key
	current atomic.Pointer[map[values]*cell] // never changed in place
	mu      sync.Mutex                       // writers
}

func newCells(keys ...attribute.Key) *cells {
	c := &cells{keys: keys}
	c.current.Store(&map[values]*cell{})
	return c
}

func (c *cells) get(v values) *cell {
	if found, ok := (*c.current.Load())[v]; ok {
		return found
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := *c.current.Load()
	if found, ok := known[v]; ok {
		return found
	}
	labels := make([]attribute.KeyValue, len(c.keys))
	for i, key := range c.keys {
		labels[i] = key.String(v[i])
	}
	set := attribute.NewSet(labels...)
	option := metric.WithAttributeSet(set)
	made := &cell{set: set, record: []metric.RecordOption{option}, observe: []metric.ObserveOption{option}}
	grown := maps.Clone(known)
	grown[v] = made
	c.current.Store(&grown)
	return made
}

// all are the cells known by now. The map must not be changed.
func (c *cells) all() map[values]*cell { return *c.current.Load() }
