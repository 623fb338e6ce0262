package extproc

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

// silentStore is a lease store that accepts connections and never answers.
type silentStore struct {
	listener net.Listener
	all      sync.WaitGroup
	asked    chan struct{} // receives once for every connection that has sent something
}

func newSilentStore(t *testing.T) *silentStore {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silentStore{listener: l, asked: make(chan struct{}, 100)}
	s.all.Go(s.serve)
	return s
}

func (s *silentStore) serve() {
	var open []net.Conn
	for {
		c, err := s.listener.Accept()
		if err != nil {
			break
		}
		open = append(open, c)
		s.all.Go(func() {
			buf := make([]byte, 4096)
			for began := false; ; began = true {
				if _, err := c.Read(buf); err != nil {
					return
				}
				if !began {
					s.asked <- struct{}{}
				}
			}
		})
	}
	for _, c := range open {
		c.Close()
	}
}

// close ends every call that waits for an answer.
func (s *silentStore) close() {
	s.listener.Close()
	s.all.Wait()
}

// use makes it the store of a configuration, with a time-out that no test waits for.
func (s *silentStore) use(c *config.Config) {
	c.Leases.Store.Embedded = false
	c.Leases.Store.Redis.Addrs = []string{s.listener.Addr().String()}
	c.Leases.Store.Redis.CallTimeout, c.Leases.Store.Redis.DialTimeout = 10*time.Second, 10*time.Second
}

// TestAClientGoneDuringTheFenceIsNotRefused: it left while the store was asked, by a reset or in good order, and is seen to
// long before the store's time is over. Its place in the lane and its bytes are free at once.
func TestAClientGoneDuringTheFenceIsNotRefused(t *testing.T) {
	for _, end := range []string{"reset", "half-close"} {
		t.Run(end, func(t *testing.T) {
			store := newSilentStore(t)
			r := newRig(t, leased(lease.ModeRequired, store.use))
			defer store.close()
			<-store.asked // the watch over the store
			s := r.open()
			s.send(rh(early, false, ":method", "POST", "content-length", "300000", "authorization", "Bearer key-a",
				"x-omniroute-lease-owner", ownerA, "x-omniroute-lease-generation", "5"), rb("x", false))
			<-store.asked
			if b, n := r.bytes.Snapshot().InflightBytes, r.lanes.Snapshot()["chat"].ActiveCount; b != 300_000 || n != 1 {
				t.Errorf("during the fence %d bytes are reserved and %d hold a place, want 300000 and 1", b, n)
			}
			began := time.Now()
			if end == "reset" {
				s.cancel()
			} else {
				s.finish()
			}
			r.settled()
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("seen after %v, want before the store's 10 s are over", took)
			}
			r.seen.mu.Lock()
			defer r.seen.mu.Unlock()
			if len(r.seen.decisions) != 1 || r.seen.decisions[reasonClientGone] != 1 {
				t.Errorf("decisions %v, want one, %s", r.seen.decisions, reasonClientGone)
			}
		})
	}
}

// TestAnAnswerDuringTheFenceEndsIt: Envoy answers by itself while the store is asked, as it does when a time is over.
func TestAnAnswerDuringTheFenceEndsIt(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{
		modev3.ProcessingMode_STREAMED, modev3.ProcessingMode_BUFFERED, modev3.ProcessingMode_FULL_DUPLEX_STREAMED, modev3.ProcessingMode_NONE,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			store := newSilentStore(t)
			r := newRig(t, leased(lease.ModeRequired, store.use))
			defer store.close()
			<-store.asked // the watch over the store
			s := r.open()
			s.send(rh(announce(mode), false, ":method", "POST", "authorization", "Bearer key-a",
				"x-omniroute-lease-owner", ownerA, "x-omniroute-lease-generation", "5"))
			<-store.asked
			s.send(sh("504", false))
			s.wants("RH", "SH")
			s.finish()
			if n := r.seen.count(reasonAnsweredEarlier); n != 1 {
				t.Errorf("decisions %v, want one, %s", r.seen.decisions, reasonAnsweredEarlier)
			}
		})
	}
}

// TestTheFenceComesAfterEveryWait: bytes are waited for when the store answers. That answer would be out of date by the time
// the wait is over, so that the store is asked again then, and not before.
func TestTheFenceComesAfterEveryWait(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	hold, _, _ := r.bytes.Acquire(budget.Request{Key: "other", Bytes: 4 * mib})
	waiter := func() *budget.Waiter {
		_, w, _ := r.bytes.Acquire(budget.Request{Key: "ours", Bytes: mib, MaxWait: time.Minute})
		return w
	}()
	if hold == nil || waiter == nil {
		t.Fatal("the budget is not taken, or nothing waits for it")
	}
	x := &exchange{server: r.server, ctx: t.Context(), policy: r.server.policy.Load(), settings: r.config.Cluster("chat")}
	x.reservation.waiter = waiter
	if end := x.endFence(fenceAnswer{fence: lease.Fence{Connection: "acct-1"}}, true); !end.ok() || x.lease.fenced {
		t.Errorf("an answer during a wait: result %v, in force: %t, want it to count for nothing", end, x.lease.fenced)
	}
	if pending, v := x.fenceGate(); !pending || v != nil || x.fence.pending() {
		t.Errorf("while bytes are waited for: pending %t, refused with %v, the store is asked: %t; want true, nil, false", pending, v, x.fence.pending())
	}
	hold.Release()
	<-x.reservation.granted()
	if v := x.endByteWait(); v != nil {
		t.Fatalf("refused: %v", v)
	}
	if pending, v := x.fenceGate(); !pending || v != nil || !x.fence.pending() {
		t.Errorf("after the wait: pending %t, refused with %v, the store is asked: %t; want true, nil, true", pending, v, x.fence.pending())
	}
	answer, ok := <-x.fence.answered()
	if end := x.endFence(answer, ok); end.kind != refused || end.verdict.Reason != "LEASE_CONTEXT_REQUIRED" && end.verdict.Reason != "LEASE_REQUIRED" {
		t.Errorf("result %v, want the store's refusal", end)
	}
	x.release()
}

// TestAFaultInTheFenceEndsOneExchange: it breaks that stream alone, as every fault does.
func TestAFaultInTheFenceEndsOneExchange(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	answer, ok := <-r.server.checkLease(t.Context(), func(context.Context) (lease.Fence, *lease.Refusal) { panic("a fault") })
	x := &exchange{server: r.server, ctx: t.Context()}
	if end := x.endFence(answer, ok); ok || end.kind != broken || status.Code(end.err) != codes.Internal {
		t.Errorf("result %v, want a broken stream with INTERNAL", end)
	}
}
