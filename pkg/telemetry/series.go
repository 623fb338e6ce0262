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

// series is what is counted under one set of label values, and the set itself in the forms that the API takes.
type series struct {
	count, bytes atomic.Int64
	set          attribute.Set
	record       []metric.RecordOption
	observe      []metric.ObserveOption
}

// seriesSet holds the series of one set of label keys. Looking one up takes no lock and, once it is known, allocates nothing.
// The caller makes sure that the number of values is bounded.
type seriesSet struct {
	keys    []attribute.Key
	current atomic.Pointer[map[values]*series] // never changed in place
	mu      sync.Mutex                         // writers
}

func newSeriesSet(keys ...attribute.Key) *seriesSet {
	c := &seriesSet{keys: keys}
	c.current.Store(&map[values]*series{})
	return c
}

func (c *seriesSet) get(v values) *series {
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
	made := &series{set: set, record: []metric.RecordOption{option}, observe: []metric.ObserveOption{option}}
	grown := maps.Clone(known)
	grown[v] = made
	c.current.Store(&grown)
	return made
}

// all returns the series known by now. The map must not be changed.
func (c *seriesSet) all() map[values]*series { return *c.current.Load() }
