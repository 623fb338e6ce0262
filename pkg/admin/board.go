package admin

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

//go:embed page/page.html
var pageSource string

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// Bounds of the event streams.
const (
	eventsEvery  = time.Second
	eventStreams = 32
	eventTimeout = 10 * time.Second // to write one event
	pageLanes    = 20               // lanes shown of a cluster
)

// BoardOptions say where the status page gets its figures. All must be set.
type BoardOptions struct {
	Health func() Health                       // a fresh document
	Lanes  func() map[string]adaptive.Snapshot // for the charts, without the lanes' own figures
}

// Board is the status page: one document without outside assets, kept up to date by server-sent events.
type Board struct {
	o       BoardOptions
	history history
	page    *template.Template
	policy  string // Content-Security-Policy
	streams chan struct{}
	closed  chan struct{}
	closing sync.Once
}

// NewBoard returns a page without a past; Run gives it one.
func NewBoard(o BoardOptions) (*Board, error) {
	page, err := template.New("page").Parse(pageSource)
	if err != nil {
		return nil, fmt.Errorf("parse the status page: %w", err)
	}
	return &Board{
		o: o, page: page, streams: make(chan struct{}, eventStreams), closed: make(chan struct{}),
		policy: fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			hashSource(pageStyle), hashSource(pageScript)),
	}, nil
}

// hashSource allows one inline element by its content.
func hashSource(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Run keeps the charts' history until ctx ends.
func (b *Board) Run(ctx context.Context) {
	tick := time.NewTicker(historyEvery)
	defer tick.Stop()
	for {
		b.history.add(b.o.Lanes())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close ends the event streams, so that a server with open pages can shut down. It is idempotent.
func (b *Board) Close() { b.closing.Do(func() { close(b.closed) }) }

// past is what a page begins with: the history so far.
type past struct {
	Every  float64            `json:"every"`  // seconds between points
	Points int                `json:"points"` // how many to keep
	Lanes  map[string][]point `json:"clusters"`
}

func (b *Board) past() (past, int) {
	lanes, taken := b.history.all()
	return past{Every: historyEvery.Seconds(), Points: historyPoints, Lanes: lanes}, taken
}

// health is the document with the longest queues only: the page shows no more.
func (b *Board) health() Health {
	h := b.o.Health()
	h.ChatAdmission.Lanes = h.ChatAdmission.Lanes[:min(len(h.ChatAdmission.Lanes), pageLanes)]
	for cluster, s := range h.AdaptiveAdmission {
		s.LaneTenants = s.LaneTenants[:min(len(s.LaneTenants), pageLanes)]
		h.AdaptiveAdmission[cluster] = s
	}
	return h
}

func (b *Board) servePage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", b.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	history, _ := b.past()
	_ = b.page.Execute(w, map[string]any{ // an error is the client's having gone
		"Style": template.CSS(pageStyle), "Script": template.JS(pageScript), //nolint:gosec // embedded
		"Health": b.health(), "History": history,
	})
}

// serveEvents sends the health document every second, and a point for the charts whenever there is one.
func (b *Board) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case b.streams <- struct{}{}:
		defer func() { <-b.streams }()
	default:
		http.Error(w, "too many event streams", http.StatusServiceUnavailable)
		return
	}
	events := eventWriter{w: w, c: http.NewResponseController(w)}
	_ = events.c.SetReadDeadline(time.Time{}) // the server's would end the stream
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	history, sent := b.past()
	events.send("history", history)
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	for events.err == nil {
		if latest, taken := b.history.last(); taken != sent {
			sent = taken
			events.send("point", latest)
		}
		events.send("health", b.health())
		select {
		case <-r.Context().Done():
			return
		case <-b.closed:
			return
		case <-tick.C:
		}
	}
}

// eventWriter writes server-sent events and remembers the first error.
type eventWriter struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	err error
}

func (e *eventWriter) send(name string, v any) {
	if e.err != nil {
		return
	}
	data, err := json.Marshal(v)
	if err != nil {
		e.err = fmt.Errorf("encode the event %s: %w", name, err)
		return
	}
	_ = e.c.SetWriteDeadline(time.Now().Add(eventTimeout)) // a server without deadlines has its own
	if _, e.err = fmt.Fprintf(e.w, "event: %s\ndata: %s\n\n", name, data); e.err == nil {
		e.err = e.c.Flush()
	}
}
