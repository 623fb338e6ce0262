package admin

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// What the history keeps.
const (
	historyEvery    = 2 * time.Second
	historyPoints   = 150 // five minutes
	historyClusters = 50
)

// point is one cluster at one moment.
type point struct {
	Limit       int     `json:"limit"`
	Active      int     `json:"active"`      // cost
	Queued      int     `json:"queued"`      // cost
	Utilization float64 `json:"utilization"` // of the last window, 0 to 1
}

func pointOf(s adaptive.Snapshot) point {
	return point{
		Limit: s.CurrentLimit, Active: s.ActiveCost, Queued: s.QueuedCost + s.LaneQueuedCost + s.VirtualQueuedCost, Utilization: s.Utilization,
	}
}

// history is the last minutes of the route clusters: the first ones by name where there are very many. A cluster that
// is not seen any more leaves it.
type history struct {
	mu        sync.Mutex
	byCluster map[string][]point // the oldest first, none longer than historyPoints
	taken     int                // points taken since the start
	latest    map[string]point   // never changed in place
}

// add takes the next point.
func (h *history) add(all map[string]adaptive.Snapshot) {
	names := slices.Sorted(maps.Keys(all))
	names = names[:min(len(names), historyClusters)]
	latest := make(map[string]point, len(names))
	for _, name := range names {
		latest[name] = pointOf(all[name])
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	next := make(map[string][]point, len(names))
	for name, p := range latest {
		points := h.byCluster[name]
		if len(points) == historyPoints {
			points = slices.Delete(points, 0, 1)
		}
		next[name] = append(points, p)
	}
	h.byCluster, h.latest = next, latest
	h.taken++
}

// all is a copy of the history and how many points have been taken.
func (h *history) all() (byCluster map[string][]point, taken int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	byCluster = make(map[string][]point, len(h.byCluster))
	for name, points := range h.byCluster {
		byCluster[name] = slices.Clone(points)
	}
	return byCluster, h.taken
}

// last is the newest point of every cluster and how many have been taken.
func (h *history) last() (latest map[string]point, taken int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest, h.taken
}
