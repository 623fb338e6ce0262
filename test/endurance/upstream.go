package endurance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Headers by which the clients tell the judge what a request is.
const (
	nameHeader    = "X-Load-Name"    // once for each request
	sessionHeader = "X-Load-Session" // the holder of the lease
)

// judge is an upstream that finds out what must not happen: a request that arrives twice, and a connection with two owners.
type judge struct {
	listener net.Listener
	server   *http.Server
	slots    chan struct{} // how many are served at a time; nil is no bound
	active   atomic.Int64
	served   atomic.Int64
	cancels  atomic.Int64 // left before they were served

	mu     sync.Mutex
	names  map[string]bool
	owners map[string]*owner // by connection
	faults []string
	fenced int // requests with an old token, which this upstream refuses as it should
}

// owner is whose token of a connection is the newest.
type owner struct {
	token   int64
	session string
}

// newJudge listens on addr, host:port, and serves slots at a time.
func newJudge(addr string, slots int) (*judge, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("start the upstream: %w", err)
	}
	j := &judge{names: map[string]bool{}, owners: map[string]*owner{}}
	if slots > 0 {
		j.slots = make(chan struct{}, slots)
	}
	j.serve(l)
	return j, nil
}

func (j *judge) serve(l net.Listener) {
	j.listener = l
	j.server = &http.Server{Handler: j, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100_000}, ReadHeaderTimeout: 10 * time.Second}
	j.server.Protocols.SetHTTP1(true)
	j.server.Protocols.SetUnencryptedHTTP2(true)
	server := j.server
	go func() { _ = server.Serve(l) }() // ends with close
}

// restart cuts everything and listens again on the same address after a while.
func (j *judge) restart(down time.Duration) error {
	addr := j.listener.Addr().String()
	j.close()
	time.Sleep(down)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			j.serve(l)
			return nil
		}
		if time.Now().After(end) {
			return err
		}
	}
}

func (j *judge) close() { _ = j.server.Close() } // what it could not close is closed with the process

// ServeHTTP reads the body, waits ms in a slot and answers, as n pieces that far apart where the query has n.
func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	j.active.Add(1)
	defer j.active.Add(-1)
	if status := j.admit(r); status != 0 {
		w.WriteHeader(status)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		j.cancels.Add(1)
		return
	}
	if j.slots != nil {
		select {
		case j.slots <- struct{}{}:
			defer func() { <-j.slots }()
		case <-r.Context().Done():
			j.cancels.Add(1)
			return
		}
	}
	pause, pieces := number(r, "ms"), max(number(r, "n"), 1)
	for range pieces {
		if !sleep(r.Context(), time.Duration(pause)*time.Millisecond) {
			j.cancels.Add(1)
			return
		}
		if _, err := io.WriteString(w, "data: something\n\n"); err != nil {
			j.cancels.Add(1)
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write says the same
	}
	j.served.Add(1)
}

// admit judges a request before it is served; a status other than 0 refuses it.
func (j *judge) admit(r *http.Request) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if name := r.Header.Get(nameHeader); name != "" {
		if j.names[name] {
			j.faults = append(j.faults, "request "+name+" arrived twice")
		}
		j.names[name] = true
	}
	connection := r.Header.Get("X-Omniroute-Connection")
	if connection == "" {
		return 0
	}
	token, err := strconv.ParseInt(r.Header.Get("X-Omniroute-Lease-Generation"), 10, 64)
	session := r.Header.Get(sessionHeader)
	if err != nil {
		j.faults = append(j.faults, fmt.Sprintf("a request on %s with the fencing token %q", connection, r.Header.Get("X-Omniroute-Lease-Generation")))
		return http.StatusBadRequest
	}
	now := j.owners[connection]
	switch {
	case now == nil || token > now.token:
		j.owners[connection] = &owner{token, session}
	case token < now.token:
		j.fenced++
		return http.StatusConflict
	case session != now.session:
		j.faults = append(j.faults, fmt.Sprintf("connection %s has two owners with the token %d: %s and %s", connection, token, now.session, session))
	}
	return 0
}

// verdict returns the faults so far.
func (j *judge) verdict() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.faults...)
}

func number(r *http.Request, name string) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil {
		return 0
	}
	return n
}

// sleep waits; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
