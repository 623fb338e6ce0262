package stack

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// Counts are the requests an upstream has had.
type Counts struct {
	Seen      int64 // headers arrived
	Completed int64 // and the whole body was read
	Active    int64 // being answered now
	BodyBytes int64 // read, of all bodies
}

// pathsCounted bounds the paths counted on their own.
const pathsCounted = 10_000

// tally counts requests, in total and by path.
type tally struct {
	total  counters
	mu     sync.Mutex
	byPath map[string]*counters
}

type counters struct{ seen, completed, active, bytes atomic.Int64 }

func (c *counters) counts() Counts {
	return Counts{Seen: c.seen.Load(), Completed: c.completed.Load(), Active: c.active.Load(), BodyBytes: c.bytes.Load()}
}

// Counts returns the counts of all requests since the start.
func (u *Upstream) Counts() Counts { return u.tally.total.counts() }

// CountsOf returns the counts of the requests with exactly this path, without the query.
func (u *Upstream) CountsOf(path string) Counts {
	u.tally.mu.Lock()
	defer u.tally.mu.Unlock()
	if c := u.tally.byPath[path]; c != nil {
		return c.counts()
	}
	return Counts{}
}

// begin counts a request and has its body counted as it is read; the returned function ends it.
func (t *tally) begin(r *http.Request) (done func()) {
	all := []*counters{&t.total}
	if c := t.path(r.URL.Path); c != nil {
		all = append(all, c)
	}
	for _, c := range all {
		c.seen.Add(1)
		c.active.Add(1)
	}
	body := &countedBody{ReadCloser: r.Body, all: all}
	if r.ContentLength == 0 {
		body.complete()
	}
	r.Body = body
	return func() {
		for _, c := range all {
			c.active.Add(-1)
		}
	}
}

func (t *tally) path(path string) *counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byPath[path]
	if c == nil && len(t.byPath) < pathsCounted {
		if t.byPath == nil {
			t.byPath = map[string]*counters{}
		}
		c = &counters{}
		t.byPath[path] = c
	}
	return c
}

// countedBody counts what is read of a body, and that it was read to its end.
type countedBody struct {
	io.ReadCloser
	all  []*counters
	once sync.Once
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range b.all {
		c.bytes.Add(int64(n))
	}
	if errors.Is(err, io.EOF) {
		b.complete()
	}
	return n, err
}

func (b *countedBody) complete() {
	b.once.Do(func() {
		for _, c := range b.all {
			c.completed.Add(1)
		}
	})
}
