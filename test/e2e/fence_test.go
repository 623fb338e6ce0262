package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// startSilentStore starts a lease store that takes connections and never answers. Its address is returned.
func startSilentStore(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// TestClientGoneDuringTheFence: the store is asked, for as long as it takes, and the client does not wait. It is seen to have
// left, and counts as that and not as refused.
func TestClientGoneDuringTheFence(t *testing.T) {
	t.Parallel()
	const body = 300_000
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed, stack.ModeFullDuplex} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{
				Overlay: fmt.Sprintf("leases: {store: {redis: {addrs: [%q], callTimeout: 10s, dialTimeout: 10s}}}", startSilentStore(t)),
				Envoy: []func(*stack.Bootstrap) error{
					func(b *stack.Bootstrap) error { return b.UseMode(mode) },
					func(b *stack.Bootstrap) error { return b.MessageTimeout(30 * time.Second) },
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := send(ctx, s, client(t, true), request{method: "POST", path: "/leased/gone", body: zeros(body), length: body, headers: map[string]string{
					"authorization": "Bearer demo-key-a", "x-omniroute-lease-owner": "vlo_" + strings.Repeat("g", 43), "x-omniroute-lease-generation": "1"}})
				done <- err
			}()
			eventually(t, "the fence", func() bool { return health(t, s).ChatAdmission.InflightBytes == body || len(done) > 0 })
			time.Sleep(100 * time.Millisecond) // the last gate is asked right after the reservation
			began := time.Now()
			cancel()
			if err := <-done; err == nil {
				t.Error("the request was answered, want it to wait for the store")
			}
			eventually(t, "the client to be seen gone", func() bool { return health(t, s).Exchanges.InFlight == 0 })
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("seen after %v, want it before the store's 10 s are over", took)
			}
			if got := decisions(t, s); len(got) != 1 || got["client_gone"] != 1 {
				t.Errorf("decisions %v, want one, client_gone", got)
			}
			if n := s.Upstream.CountsOf("/leased/gone").Seen; n != 0 {
				t.Errorf("the upstream saw the request %d times, want never", n)
			}
		})
	}
}
