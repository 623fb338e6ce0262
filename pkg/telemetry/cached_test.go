package telemetry

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counting is a collector of one metric: how often it was collected from.
type counting struct {
	desc        *prometheus.Desc
	collections float64
}

func (c *counting) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

func (c *counting) Collect(to chan<- prometheus.Metric) {
	c.collections++
	to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, c.collections)
}

func TestTheProcessIsReadOnceInFourSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// given a collector behind scrapes that come each second, several at a time
		c := &counting{desc: prometheus.NewDesc("collections_total", "How often.", nil, nil)}
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(&cachedCollector{Collector: c}); err != nil {
			t.Fatal(err)
		}
		for second := range 12 {
			var scrapes sync.WaitGroup
			for range 3 {
				scrapes.Go(func() {
					families, err := registry.Gather()
					if err != nil || len(families) != 1 {
						t.Errorf("%d metrics and error %v, want one", len(families), err)
						return
					}
					// then each sees the metric, as it was at the last multiple of four seconds
					got, want := families[0].GetMetric()[0].GetCounter().GetValue(), float64(second/4+1)
					if got != want {
						t.Errorf("after %d s: %v, want %v", second, got, want)
					}
				})
			}
			scrapes.Wait()
			time.Sleep(time.Second)
		}
	})
}
