package stack

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// RelayOptions describe a relay.
type RelayOptions struct {
	Target string      // host:port
	TLS    *tls.Config // terminates TLS in front of a target that speaks none
}

// Relay is a TCP relay that can be told to misbehave. Everything applies to the connections there are and those to come.
type Relay struct {
	Addr string // host:port it listens on

	listener   net.Listener
	target     atomic.Pointer[string]
	delay      atomic.Int64 // of replies, ns
	lag        atomic.Int64 // of requests, ns
	dropsReply atomic.Bool
	holdsAll   atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
	open  atomic.Int64 // connections now
	total atomic.Int64 // connections ever
}

// StartRelay listens on a free port of the loopback address. Stop it.
func StartRelay(o RelayOptions) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a relay: %w", err)
	}
	r := &Relay{Addr: l.Addr().String(), listener: l, conns: map[net.Conn]struct{}{}}
	if o.TLS != nil {
		r.listener = tls.NewListener(l, o.TLS)
	}
	r.Retarget(o.Target)
	r.wg.Go(r.accept)
	return r, nil
}

// Retarget sends new connections elsewhere.
func (r *Relay) Retarget(addr string) { r.target.Store(&addr) }

// DelayReplies holds what the target says back for d.
func (r *Relay) DelayReplies(d time.Duration) { r.delay.Store(int64(d)) }

// DelayRequests holds what clients say for d.
func (r *Relay) DelayRequests(d time.Duration) { r.lag.Store(int64(d)) }

// DropReplies throws away what the target says while on.
func (r *Relay) DropReplies(on bool) { r.dropsReply.Store(on) }

// BlackHole swallows both directions while on; connections stay open.
func (r *Relay) BlackHole(on bool) { r.holdsAll.Store(on) }

// Open is the number of client connections now.
func (r *Relay) Open() int64 { return r.open.Load() }

// Total is the number of client connections ever.
func (r *Relay) Total() int64 { return r.total.Load() }

// Cut closes every connection.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// Stop closes the relay and waits for its goroutines.
func (r *Relay) Stop() {
	r.listener.Close()
	r.Cut()
	r.wg.Wait()
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // stopped
		}
		r.total.Add(1)
		r.wg.Go(func() { r.serve(client) })
	}
}

func (r *Relay) serve(client net.Conn) {
	r.open.Add(1)
	defer r.open.Add(-1)
	defer client.Close()
	r.track(client, true)
	defer r.track(client, false)
	server, err := net.DialTimeout("tcp", *r.target.Load(), 2*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	r.track(server, true)
	defer r.track(server, false)
	var both sync.WaitGroup
	both.Go(func() { r.pass(server, client, &r.lag, func() bool { return false }) })
	both.Go(func() { r.pass(client, server, &r.delay, r.dropsReply.Load) })
	both.Wait()
}

func (r *Relay) track(c net.Conn, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on {
		r.conns[c] = struct{}{}
	} else {
		delete(r.conns, c)
	}
}

type parcel struct {
	data []byte
	due  time.Time
}

// pass copies until either end closes. Delays do not add up: each piece is due a fixed time after it arrived.
func (r *Relay) pass(to, from net.Conn, delay *atomic.Int64, drop func() bool) {
	queue := make(chan parcel, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				from.Close() // ends the reader
			}
		}
		to.Close()
	})
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !drop() && !r.holdsAll.Load() {
			queue <- parcel{append([]byte(nil), buffer[:n]...), time.Now().Add(time.Duration(delay.Load()))}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	writer.Wait()
}

// StartSilence returns an address that answers no connection attempt at all, as a network that drops packets does: a
// listener whose queue is full and that never accepts. Call close at the end.
func StartSilence() (addr string, stop func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("start a silent address: %w", err)
	}
	var fillers []net.Conn
	stop = func() {
		for _, c := range fillers {
			c.Close()
		}
		syscall.Close(fd)
	}
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		stop()
		return "", nil, fmt.Errorf("start a silent address: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	at, isInet := name.(*syscall.SockaddrInet4)
	if err != nil || !isInet {
		stop()
		return "", nil, fmt.Errorf("start a silent address: %w", err)
	}
	addr = fmt.Sprintf("127.0.0.1:%d", at.Port)
	for range 8 { // until the queue is full
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr, stop, nil
		}
		fillers = append(fillers, c)
	}
	stop()
	return "", nil, fmt.Errorf("start a silent address: %s still accepts", addr)
}
