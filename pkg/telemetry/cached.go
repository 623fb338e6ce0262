package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// processFresh is how old metrics of the process and of Go's runtime may be: less than the usual intervals of scrapes, of
// which 5 s are the least.
const processFresh = 4 * time.Second

// cachedCollector collects from another collector at most once in processFresh, and repeats the last metrics meanwhile. The
// metrics of the process are read from a handful of files, which would be a third of the cost of a scrape a second.
type cachedCollector struct {
	prometheus.Collector

	mu      sync.Mutex
	metrics []prometheus.Metric // as of at; never changed in place
	at      time.Time
}

// Collect implements prometheus.Collector.
func (c *cachedCollector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.fresh() {
		to <- m
	}
}

func (c *cachedCollector) fresh() []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metrics != nil && time.Since(c.at) < processFresh {
		return c.metrics
	}
	collected := make(chan prometheus.Metric)
	go func() {
		defer close(collected)
		c.Collector.Collect(collected)
	}()
	c.metrics, c.at = nil, time.Now() // a new slice: others may be reading the old one
	for m := range collected {
		c.metrics = append(c.metrics, m)
	}
	return c.metrics
}
