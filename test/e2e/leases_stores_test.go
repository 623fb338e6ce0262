package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// leaseStore is where a test's leases are.
type leaseStore struct {
	server *stack.Redis // nil: embedded in the sidecar
	path   string       // of the embedded store's file; empty: nothing survives the sidecar
}

// setting names the store within leases.
func (st leaseStore) setting() string {
	if st.server == nil {
		return fmt.Sprintf("store: {embeddedPath: %q}", st.path)
	}
	return fmt.Sprintf("store: {redis: {addrs: [%q], callTimeout: 1s}}", st.server.Addr)
}

// lasting is the store with leases that survive the sidecar.
func (st leaseStore) lasting(t *testing.T) leaseStore {
	t.Helper()
	if st.server == nil {
		st.path = filepath.Join(t.TempDir(), "leases")
	}
	return st
}

// onLeaseStores runs a test on the embedded store, a Redis and a Valkey.
func onLeaseStores(t *testing.T, test func(t *testing.T, st leaseStore)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, leaseStore{})
	})
	onLeaseServers(t, func(t *testing.T, server *stack.Redis) { test(t, leaseStore{server: server}) })
}

// onLeaseServers runs a test on a Redis and a Valkey.
func onLeaseServers(t *testing.T, test func(t *testing.T, server *stack.Redis)) {
	t.Helper()
	for name, find := range map[string]func(context.Context) (string, error){"redis": stack.FindRedis, "valkey": stack.FindValkey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			binary, err := find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			server, err := stack.StartRedis(t.Context(), stack.RedisOptions{Binary: binary})
			if err != nil {
				t.Fatalf("start %s: %v", name, err)
			}
			t.Cleanup(server.Stop)
			test(t, server)
		})
	}
}

// operated starts a stack with an operator.
func operated(t *testing.T, o stack.Options) operator {
	t.Helper()
	token := tokenFile(t, strings.Repeat("operator", 4))
	o.Environ = append(o.Environ, "HEADGATE_LISTEN_ADMIN_TOKEN_FILE="+token)
	return operator{start(t, o), token}
}

// headers are those of a leased request.
func (a session) headers(generation string, more ...string) map[string]string {
	headers := map[string]string{"authorization": "Bearer " + a.key, "x-omniroute-lease-owner": a.owner, "x-omniroute-lease-generation": generation}
	for i := 0; i < len(more); i += 2 {
		headers[more[i]] = more[i+1]
	}
	return headers
}

// streamed is how a response ended.
type streamed struct {
	events int
	err    error
}

// stream begins a leased response of so many events, ten a second, and returns once the first have passed.
func (a session) stream(t *testing.T, generation string, events int) <-chan streamed {
	t.Helper()
	ended := make(chan streamed, 1)
	go func() {
		r, err := send(t.Context(), a.s, client(t, false), request{path: fmt.Sprintf("/leased/drip?n=%d&ms=100", events), headers: a.headers(generation)})
		ended <- streamed{strings.Count(r.body, "data:"), err}
	}()
	eventually(t, "the response to begin", func() bool {
		return a.s.Upstream.CountsOf("/leased/drip").Active == 1 && health(t, a.s).Exchanges.InFlight == 1
	})
	time.Sleep(300 * time.Millisecond)
	return ended
}
