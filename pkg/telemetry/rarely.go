package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// processFresh is how old metrics of the process and of Go's runtime may be: less than the usual intervals of scrapes, of
// which 5 s are the least.
const processFresh = 4 * time.Second

// rarely collects from another collector at most once in processFresh. The metrics of the process are read from a handful of
// files, which would be a third of what a scrape a second costs.
type rarely struct {
	prometheus.Collector

	mu   sync.Mutex
	kept []prometheus.Metric
	at   time.Time
}

// Collect implements prometheus.Collector.
func (r *rarely) Collect(to chan<- prometheus.Metric) {
	for _, m := range r.fresh() {
		to <- m
	}
}

func (r *rarely) fresh() []prometheus.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept != nil && time.Since(r.at) < processFresh {
		return r.kept
	}
	collected := make(chan prometheus.Metric)
	go func() {
		defer close(collected)
		r.Collector.Collect(collected)
	}()
	r.kept, r.at = nil, time.Now() // a new slice: others may be reading the old one
	for m := range collected {
		r.kept = append(r.kept, m)
	}
	return r.kept
}
