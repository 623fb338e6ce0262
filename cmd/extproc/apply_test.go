package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
)

// loaded is the configuration of a file.
func loaded(t *testing.T, text string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newTestApp(t *testing.T, text string) *app {
	t.Helper()
	a, err := newApp(loaded(t, text), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

// TestAReloadIsAllOrNothing: whatever of it fails, nothing of it holds and nobody who waits is refused.
func TestAReloadIsAllOrNothing(t *testing.T) {
	const before = `
bytes: {queue: {maxWait: 10s, calmWait: 10s}, budget: {override: 8MiB}}
clusters: {chat: {lanes: {mode: enforce, minLimit: 8, initialLimit: 8, maxLimit: 8, maxWait: 10s}}}
`
	// Each of these would refuse who waits: no place in any queue, and bodies that never fit.
	const refusing = `
bytes: {queue: {maxWait: 0s, calmWait: 0s, maxQueuedBytes: 0}, budget: {override: 16MiB %s}}
clusters: {chat: {lanes: {mode: "off"}}}
leases: {store: {%s}}
`
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a secret that is not there":         fmt.Sprintf(refusing, "", `redis: {addrs: ["127.0.0.1:1"], passwordFile: "`+filepath.Join(dir, "none")+`"}`),
		"a process that is not there":        fmt.Sprintf(refusing, ", cgroupPid: 4194304", ""),
		"a root without the process's files": fmt.Sprintf(refusing, ", cgroupRoot: "+dir, ""),
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestApp(t, before)
			c := a.lanes.Controller("chat")
			var permits []*adaptive.Permit
			for waits := false; !waits; {
				p := new(adaptive.Permit)
				permits = append(permits, p)
				waits = c.Acquire(p, adaptive.Request{Lane: "a", Cost: 8}) == adaptive.Waiting
			}
			defer func() {
				for _, p := range permits {
					p.Cancel()
				}
			}()
			hold, _, _ := a.bytes.Acquire(budget.Request{Bytes: 8 << 20})
			if hold == nil {
				t.Fatal("8 MiB were not admitted")
			}
			defer hold.Release()
			_, byteWaiter, refusal := a.bytes.Acquire(budget.Request{Bytes: 1 << 20, MaxWait: time.Minute})
			if byteWaiter == nil {
				t.Fatalf("a body does not wait: %+v", refusal)
			}
			defer byteWaiter.Cancel()
			was, lanes, bytes := a.config.Load(), a.lanes.Totals()["chat"], a.bytes.Snapshot()

			if err := a.apply(loaded(t, text)); err == nil {
				t.Fatal("applied, want an error")
			} else if !strings.Contains(err.Error(), "leases") && !strings.Contains(err.Error(), "memory limit") {
				t.Errorf("error %v, want it to name the reason", err)
			}
			if a.config.Load() != was {
				t.Error("another configuration is in force")
			}
			if got := a.lanes.Totals()["chat"]; got.Mode != lanes.Mode || got.QueuedCount != lanes.QueuedCount {
				t.Errorf("lanes %+v, want %+v", got, lanes)
			}
			if got := a.bytes.Snapshot(); got.Waiting != 1 || got.ShedTotal != bytes.ShedTotal || got.MaxInflightBytes != bytes.MaxInflightBytes {
				t.Errorf("bytes %+v, want %+v", got, bytes)
			}
			if _, w, _ := a.bytes.Acquire(budget.Request{Bytes: 1 << 20, MaxWait: time.Minute}); w == nil {
				t.Error("a body may not wait any more: the new queue is in force")
			} else {
				w.Cancel()
			}
		})
	}
}

// TestTheAPIBelievesTheAddressItIsBoundTo: a reload that names loopback does not make a port that everybody reaches a local one.
func TestTheAPIBelievesTheAddressItIsBoundTo(t *testing.T) {
	const text = `
listen: {grpc: "127.0.0.1:0", admin: "", api: "%s"}
principalSources: [{header: x-user}]
principals: [{id: team, scopes: ["lease:exclusive"], connections: [acct-1]}]
leases: {pools: {chat: {connections: [{id: acct-1}]}}}
`
	for bound, want := range map[string]int{"127.0.0.1:0": http.StatusOK, "0.0.0.0:0": http.StatusUnauthorized} {
		a := newTestApp(t, fmt.Sprintf(text, bound))
		if err := a.listen(context.Background(), a.config.Load()); err != nil {
			t.Fatal(err)
		}
		a.start()
		if err := a.apply(loaded(t, fmt.Sprintf(text, "127.0.0.1:0"))); err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(a.http[0].listener.Addr().String())
		q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/v1/session-leases?pool=chat", strings.NewReader(`{"action":"acquire","model":"m"}`))
		q.Header.Set("X-User", "team")
		q.Header.Set("X-Omniroute-Lease-Owner", "vlo_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG")
		q.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("bound to %s, a header names the caller: %d %s, want %d", bound, response.StatusCode, body, want)
		}
	}
}
