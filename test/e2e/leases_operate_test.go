package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// operator runs extproc leases against a sidecar.
type operator struct {
	s     *stack.Stack
	token string // file
}

func (o operator) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"leases"}, append(args, "--address", o.s.Sidecar.Config.Listen.Admin)...)
	if o.token != "" && args[1] != "list" {
		args = append(args, "--token-file", o.token)
	}
	var out bytes.Buffer
	command := exec.CommandContext(t.Context(), sidecarBinary, args...)
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	return out.String(), err
}

// says runs a command that must succeed and say something.
func (o operator) says(t *testing.T, want string, args ...string) {
	t.Helper()
	if got, err := o.run(t, args...); err != nil || !strings.Contains(got, want) {
		t.Errorf("extproc leases %s: %q (%v), want %q", strings.Join(args, " "), got, err, want)
	}
}

// fails runs a command that must fail and say why.
func (o operator) fails(t *testing.T, want string, args ...string) {
	t.Helper()
	if got, err := o.run(t, args...); err == nil || !strings.Contains(got, want) {
		t.Errorf("extproc leases %s: %q (%v), want a failure with %q", strings.Join(args, " "), got, err, want)
	}
}

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestOperatorsEndLeasesAndCooldowns: over the admin port, with the token. An upstream cannot ask for more than
// cooldown.max, and repetitions add nothing.
func TestOperatorsEndLeasesAndCooldowns(t *testing.T) {
	t.Parallel()
	onLeaseStores(t, operatorsEndLeasesAndCooldowns)
}

func operatorsEndLeasesAndCooldowns(t *testing.T, st leaseStore) {
	o := operated(t, stack.Options{Overlay: fmt.Sprintf("leases: {onLost: cut, %s}", st.setting())})
	s := o.s
	a := session{s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("o", 43)}
	generation := a.acquire(t)
	_, seen := a.get(t, generation)
	bound := seen.Headers.Get("X-Omniroute-Connection")
	o.says(t, generation, "list")

	t.Run("end", func(t *testing.T) {
		cut := a.stream(t, generation, 300)
		wrong := operator{s: s, token: tokenFile(t, strings.Repeat("x", 32))}
		wrong.fails(t, "wrong token", "end", bound)
		operator{s: s, token: tokenFile(t, "short")}.fails(t, "at least 32 bytes", "end", bound)
		o.fails(t, "no pool has a connection", "end", "acct-9")
		if got, _ := a.get(t, generation); got.status != 200 {
			t.Errorf("after commands that failed: %d %s, want 200", got.status, got.reason())
		}
		o.says(t, "ended the lease of own_", "end", bound, "--reason", "QUOTA_UNAVAILABLE")
		if e := <-cut; e.err == nil {
			t.Error("the response in flight came to its end, want it cut: its lease was ended")
		}
		if got, _ := a.get(t, generation); got.status != 409 || got.reason() != "LEASE_REQUIRED" {
			t.Errorf("after the end: %d %s, want 409 LEASE_REQUIRED", got.status, got.reason())
		}
		o.says(t, "nobody holds a lease on "+bound, "end", bound)
		o.says(t, "QUOTA_UNAVAILABLE", "list", "--events", "5")
		eventually(t, "the audit line", func() bool {
			log := s.Sidecar.Tail()
			return strings.Contains(log, `"operator acted"`) && strings.Contains(log, `"why":"QUOTA_UNAVAILABLE"`) && strings.Contains(log, `"operator refused"`) &&
				!strings.Contains(log, "operatoroperator")
		})
	})

	t.Run("wake", func(t *testing.T) {
		generation := a.acquire(t)
		_, seen := a.get(t, generation)
		bound := seen.Headers.Get("X-Omniroute-Connection")
		began := time.Now()
		for range 3 { // an account that is used up for a day, it says
			if got := must(t, s, a.c, request{path: "/leased/status/429?retry-after=86400", headers: a.headers(generation)}); got.status != 429 || got.reason() != "" {
				break // both connections are in cooldown by now, and the lease has ended
			}
			time.Sleep(100 * time.Millisecond)
		}
		eventually(t, "the cooldown", func() bool { return connectionOf(t, s, bound).Cooldown != nil })
		if until := connectionOf(t, s, bound).Cooldown; until.After(time.Now().Add(10*time.Minute)) || until.Before(began.Add(9*time.Minute)) {
			t.Errorf("in cooldown for %v after a Retry-After of a day, want 10 min, which is cooldown.max", until.Sub(began))
		}
		o.says(t, "ended the cooldown of "+bound, "wake", bound)
		o.says(t, bound+" is in no cooldown", "wake", bound)
		if c := connectionOf(t, s, bound); c.Cooldown != nil {
			t.Errorf("%s is in cooldown until %v after it was ended", bound, c.Cooldown)
		}
		// The next answer begins one again.
		must(t, s, a.c, request{path: "/leased/status/429?retry-after=60", headers: a.headers(a.acquire(t))})
		eventually(t, "the cooldown after the next 429", func() bool { return connectionOf(t, s, bound).Cooldown != nil })
		o.says(t, "ended the cooldown", "wake", bound)
	})

	t.Run("cooldown", func(t *testing.T) {
		o.says(t, "is in cooldown for 5m", "cooldown", "acct-1")
		if c := connectionOf(t, s, "acct-1"); c.Cooldown == nil {
			t.Errorf("acct-1 is %+v, want it in cooldown", c)
		}
		o.says(t, "ended the cooldown of acct-1", "wake", "acct-1")
	})
}

// TestNothingIsChangedWithoutATokenFile: a sidecar that names none refuses, whatever is presented.
func TestNothingIsChangedWithoutATokenFile(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	operator{s: s, token: tokenFile(t, strings.Repeat("x", 32))}.fails(t, "listen.adminTokenFile is not set", "end", "acct-1")
	operator{s: s}.fails(t, "no token", "wake", "acct-1", "--config", s.ConfigFile())
}

// connectionOf is one connection, as the admin port lists it.
func connectionOf(t *testing.T, s *stack.Stack, id string) lease.ConnectionListing {
	t.Helper()
	for _, p := range listing(t, s) {
		for _, c := range p.Connections {
			if c.ID == id {
				return c
			}
		}
	}
	t.Fatalf("no connection %s", id)
	return lease.ConnectionListing{}
}
