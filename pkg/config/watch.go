package config

import (
	"context"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// WatchOptions say what a Watcher watches and what it does with what it finds.
type WatchOptions struct {
	Path    string   // as for Load
	Environ []string // as for Load

	// Trigger reloads at once and applies even what has not changed, so that files the configuration names are read
	// again: the channel of signal.Notify for SIGHUP. It may be nil.
	Trigger <-chan os.Signal

	// Apply puts a valid configuration into effect, or returns an error having changed nothing; then it is called again,
	// after Retry and at intervals that double up to a minute, until it succeeds or there is something else to apply. It is
	// never called concurrently.
	Apply func(*Config) error

	Log      *slog.Logger
	Debounce time.Duration // quiet time after a change of the file; 0 means 200 ms
	Poll     time.Duration // how often the file is looked at without notice; 0 means 10 s
	Retry    time.Duration // until Apply is called again after it failed; 0 means 1 s
}

// longestRetry bounds the time between two calls of an Apply that fails.
const longestRetry = time.Minute

// ReloadStatus is the outcome of the last reload, for health and metrics.
type ReloadStatus struct {
	Hash        string    `json:"hash"`        // of the configuration in effect
	LastSuccess bool      `json:"lastSuccess"` // true before the first reload
	LastError   string    `json:"lastError"`   // every fault; empty after a success
	At          time.Time `json:"at,omitzero"` // of the last attempt; zero before the first
	Count       int64     `json:"count"`       // configurations put into effect since the start
	Failures    int64     `json:"failures"`    // attempts that kept the old configuration
}

// Watcher reloads the configuration when it is told to or when the file's content changes.
//
// Notices of the file system are hints only; what counts is whether the content differs from what was seen last. So it
// does not matter how a change is made (in place, by renaming over, by the swap of a ConfigMap's ..data link), a faulty
// file is reported once, and a file system without notices is served by polling.
type Watcher struct {
	o       WatchOptions
	started *Config // the listeners are open on its addresses
	seen    string  // what the file was when last looked at
	current *Config
	retry   retry

	mu     sync.Mutex
	status ReloadStatus
}

// retry is the next call of an Apply that failed.
type retry struct {
	at     time.Time     // zero: none is due
	after  time.Duration // the last one
	forced bool          // it applies even what has not changed
}

// NewWatcher prepares to watch over current, a configuration that Load returned and that is in effect.
func NewWatcher(current *Config, o WatchOptions) *Watcher {
	if o.Debounce <= 0 {
		o.Debounce = 200 * time.Millisecond
	}
	if o.Poll <= 0 {
		o.Poll = 10 * time.Second
	}
	if o.Retry <= 0 {
		o.Retry = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Path = filePath(o.Path, o.Environ)
	return &Watcher{
		o: o, started: current, current: current, seen: hex.EncodeToString(current.source[:]),
		status: ReloadStatus{Hash: current.Hash(), LastSuccess: true},
	}
}

// Status returns the outcome of the last reload.
func (w *Watcher) Status() ReloadStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Run watches until ctx ends. It must be called once.
func (w *Watcher) Run(ctx context.Context) {
	notices := w.openNotices()
	defer notices.close()
	w.run(ctx, notices)
}

func (w *Watcher) run(ctx context.Context, notices *notices) {
	poll := time.NewTicker(w.o.Poll)
	defer poll.Stop()
	// The first look catches a change between Load and here.
	quiet := time.NewTimer(w.o.Debounce)
	defer quiet.Stop()
	retry := time.NewTimer(longestRetry)
	defer retry.Stop()
	trigger := w.o.Trigger
	for {
		retry.Stop()
		if !w.retry.at.IsZero() {
			retry.Reset(time.Until(w.retry.at))
		}
		select {
		case <-ctx.Done():
			return
		case _, open := <-trigger:
			if !open {
				trigger = nil
				continue
			}
			w.reload(true, 0)
		case event, open := <-notices.events:
			if !open {
				notices.events = nil
			} else if notices.concern(event) {
				quiet.Reset(w.o.Debounce)
			}
		case err, open := <-notices.errors:
			if !open {
				notices.errors = nil
				continue
			}
			w.o.Log.Warn("watching the configuration file", "error", err)
			quiet.Reset(w.o.Debounce)
		case <-quiet.C:
			notices.follow() // first, so that no change falls between the look and the watch
			w.reload(false, 0)
		case <-poll.C:
			notices.follow()
			w.reload(false, 0)
		case <-retry.C:
			w.seen = "" // so that it is news
			w.reload(w.retry.forced, w.retry.after)
		}
	}
}

// reload looks at the file and, if it is news or forced, loads it and puts it into effect. waited is how long it was put off
// because it failed before.
func (w *Watcher) reload(force bool, waited time.Duration) {
	if w.o.Path == "" && !force {
		return
	}
	c, source, err := load(w.o.Path, w.o.Environ)
	seen := hex.EncodeToString(source[:])
	if err != nil && source == (digest{}) {
		seen = err.Error()
	}
	if seen == w.seen && !force {
		return
	}
	w.seen, w.retry = seen, retry{}
	if err != nil {
		w.failed("configuration not reloaded, the old one stays in effect", err)
		return
	}
	changed := changedPaths(w.current, c)
	if len(changed) == 0 && !force {
		w.o.Log.Info("configuration file changed, its settings did not")
		w.succeeded(c, 0)
		return
	}
	if err := w.o.Apply(c); err != nil {
		// What stood in the way may pass.
		after := min(max(2*waited, w.o.Retry), longestRetry)
		w.retry = retry{at: time.Now().Add(after), after: after, forced: force}
		w.failed("configuration not applied, the old one stays in effect", err)
		return
	}
	w.succeeded(c, 1)
	w.logReload(c, changed)
}

func (w *Watcher) logReload(c *Config, changed []string) {
	const most = 20
	w.o.Log.Info("configuration reloaded", "hash", c.Hash(), "changes", len(changed), "changed", changed[:min(most, len(changed))])
	for _, note := range c.Notes {
		w.o.Log.Info("configuration: " + note)
	}
	if paths := needsRestart(w.started, c); len(paths) > 0 {
		w.o.Log.Warn("configuration changes that need a restart are not in effect", "paths", paths)
	}
}

func (w *Watcher) succeeded(c *Config, applied int64) {
	w.current = c
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Hash, w.status.LastSuccess, w.status.LastError, w.status.At = c.Hash(), true, "", time.Now()
	w.status.Count += applied
}

func (w *Watcher) failed(message string, err error) {
	w.o.Log.Error(message, "error", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.LastSuccess, w.status.LastError, w.status.At = false, err.Error(), time.Now()
	w.status.Failures++
}

// notices are the file system's. A file that is no link is watched itself, so that what is written beside it wakes nobody; its
// end, by removal or by another one that takes its place, is noticed too. A link's directory and that of what it leads to are
// watched instead, as is the directory of a file that is not there.
type notices struct {
	watcher *fsnotify.Watcher // nil without notices
	events  chan fsnotify.Event
	errors  chan error
	path    string
	names   []string // of the entries that matter
}

func (w *Watcher) openNotices() *notices {
	n := &notices{path: w.o.Path}
	if w.o.Path == "" {
		return n
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.o.Log.Warn("no notices of the file system, polling the configuration file", "error", err, "interval", w.o.Poll)
		return n
	}
	n.watcher, n.events, n.errors = watcher, watcher.Events, watcher.Errors
	n.follow()
	return n
}

// follow watches where the file is now.
func (n *notices) follow() {
	if n.watcher == nil {
		return
	}
	wanted := n.places()
	for _, place := range n.watcher.WatchList() {
		if !slices.Contains(wanted, filepath.Clean(place)) || filepath.Clean(place) == filepath.Clean(n.path) { // it may be another file by now
			_ = n.watcher.Remove(place) // gone already is as good
		}
	}
	for _, place := range wanted {
		_ = n.watcher.Add(place) // watched already, or missing: the poll sees what this misses
	}
}

// places are what to watch, and set the names of the entries that matter there.
func (n *notices) places() []string {
	n.names = []string{"..data", filepath.Base(n.path)}
	target, err := filepath.EvalSymlinks(n.path)
	if err != nil {
		return []string{filepath.Dir(filepath.Clean(n.path))}
	}
	if absolute, err := filepath.Abs(n.path); err == nil && (target == filepath.Clean(n.path) || target == absolute) {
		return []string{filepath.Clean(n.path)}
	}
	n.names = append(n.names, filepath.Base(target))
	return []string{filepath.Dir(filepath.Clean(n.path)), filepath.Dir(target)}
}

func (n *notices) concern(event fsnotify.Event) bool {
	return slices.Contains(n.names, filepath.Base(event.Name))
}

func (n *notices) close() {
	if n.watcher != nil {
		_ = n.watcher.Close() // nothing to lose
	}
}
