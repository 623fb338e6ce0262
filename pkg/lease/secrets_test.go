package lease_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// TestNothingSecretIsSaid drives everything, in good times and bad, and searches all that came out for raw owners and keys:
// log at its finest, observer, answers, listing, health report, errors, and every command the store saw.
func TestNothingSecretIsSaid(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	relay := startRelay(t, server.Addr)
	s := onRedis(settings("acct-1", "acct-2"), relay.Addr)
	s.Store.Redis.CallTimeout = 500 * time.Millisecond
	var out syncBuffer
	say := func(v ...any) { fmt.Fprintln(&out, v...) }
	svc := newLoggedService(t, s, &out, lease.Observer{
		Answer:  func(action, pool, outcome string) { say(action, pool, outcome) },
		Call:    func(script string, _ time.Duration, err error) { say(script, err) },
		Lost:    func(pool, why string) { say(pool, why) },
		Breaker: func(pool, state string) { say(pool, state) },
		Pool:    func(pool string, active, resting, expired int64) { say(pool, active, resting, expired) },
	})
	monitor := watchCommands(t, server.Addr, &out)
	ctx := within(t, 2*patience)
	answering(t, svc)

	drive := func() {
		for n := range 3 {
			w := post("key-a", n, acquireBody).to(svc)
			say(w.Header(), w.Body)
			g := "1"
			if w.Code == http.StatusOK {
				g = generation(t, w)
			}
			for _, c := range []call{
				post("key-a", n, `{"action":"renew","generation":`+g+`}`), post("key-b", n, `{"action":"status","generation":`+g+`}`),
				post("key-a", n, `{"action":"status","generation":`+g+`}`), post("key-wrong", n, acquireBody),
				{key: "key-a", owner: "vlo_malformed-owner", contentType: "application/json", body: acquireBody},
				post("key-a", n, `{"action":"release","generation":`+g+`}`), post("key-a", n, `{"action":"steal","key":"key-in-body"}`),
			} {
				w := c.to(svc)
				say(w.Header(), w.Body)
			}
			l, r := svc.Acquire(ctx, ask(t, svc, n, teamA, 0), "m")
			say(l, r)
			f, r := svc.Check(ctx, fence(t, svc, n, teamA, l.Generation))
			say(f, r)
			hold := svc.Keep(f, func(why lease.EndReason) { say(why) })
			say(move(t, svc, n, teamA, l))
			say(svc.SetCooldown(ctx, pool, "acct-1", time.Millisecond))
			hold.Stop()
			say(svc.EndLease(ctx, pool, l.Connection, lease.ManagedKeyRevoked))
		}
		w := httptest.NewRecorder()
		svc.ListHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?events=100", nil))
		say(w.Body)
		state, err := json.Marshal(svc.State())
		say(string(state), err, svc.Healthy(ctx))
	}
	drive()
	monitor()
	relay.DropReplies(true)
	drive()
	relay.DropReplies(false)
	server.Kill()
	drive()
	say(svc.Configure(lease.Settings{}, []lease.Principal{{ID: "x", KeySHA256: "key-a"}, {ID: "x", KeySHA256: "key-b"}}))

	text := out.String()
	if len(text) < 10000 || !strings.Contains(text, "evalsha") || !strings.Contains(text, "ACQUIRED") || !strings.Contains(text, string(lease.ServiceUnavailable)) {
		t.Fatalf("the search covers too little: %d bytes\n%s", len(text), text)
	}
	for _, secret := range []string{rawOwner(0), rawOwner(1), rawOwner(2), "vlo_", "key-a", "key-b", "key-wrong", "key-in-body", lease.HashKey("key-a"), teamA} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%q is said: ...%s...", secret, text[max(0, i-100):min(len(text), i+100)])
		}
	}
}

// watchCommands writes every command a Redis sees, until stopped.
func watchCommands(t *testing.T, addr string, out *syncBuffer) (stop func()) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "MONITOR\r\n")
	var done sync.WaitGroup
	done.Go(func() { _, _ = io.Copy(out, c) })
	return func() {
		time.Sleep(200 * time.Millisecond) // what is on its way
		c.Close()
		done.Wait()
	}
}
