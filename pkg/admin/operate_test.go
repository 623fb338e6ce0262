package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// oneLease is a pool "chat" with acct-1, which is leased, and acct-2, which is in cooldown.
type oneLease struct{ calls []string }

func (o *oneLease) note(parts ...string) { o.calls = append(o.calls, strings.Join(parts, " ")) }

func (o *oneLease) EndLease(_ context.Context, pool, connection string, why lease.EndReason) (lease.LeaseListing, *lease.Refusal) {
	o.note("end", pool, connection, string(why))
	if connection != "acct-1" {
		return lease.LeaseListing{}, &lease.Refusal{Reason: lease.LeaseRequired}
	}
	return lease.LeaseListing{Owner: "own_1", Principal: "prn_1", Generation: 7}, nil
}

func (o *oneLease) SetCooldown(_ context.Context, pool, connection string, d time.Duration) *lease.Refusal {
	o.note("cooldown", pool, connection, d.String())
	return nil
}

func (o *oneLease) EndCooldown(_ context.Context, pool, connection string) (bool, *lease.Refusal) {
	o.note("wake", pool, connection)
	if connection == "broken" {
		return false, &lease.Refusal{Reason: lease.ServiceUnavailable}
	}
	return connection == "acct-2", nil
}

const operatorToken = "0123456789abcdef0123456789abcdef"

// operate sends one operation.
func operate(t *testing.T, o Operations, authorization, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/session-leases", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, r)
	return w
}

func operations(leases *oneLease, log *bytes.Buffer) Operations {
	return Operations{
		Leases: leases, Token: func() (string, error) { return operatorToken, nil }, Log: slog.New(slog.NewJSONHandler(log, nil)),
		PoolOf: func(connection string) string {
			if strings.HasPrefix(connection, "acct-") || connection == "broken" {
				return "chat"
			}
			return ""
		},
	}
}

// TestOperations: what an operator asks for is done, answered and in the log, and nothing else is done.
func TestOperations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body   string
		status int
		answer string // a part of it
		call   string
	}{
		{`{"action":"end","connection":"acct-1"}`, 200, `"done": true`, "end chat acct-1 CONNECTION_INELIGIBLE"},
		{`{"action":"end","connection":"acct-1","reason":"QUOTA_UNAVAILABLE"}`, 200, `"generation": 7`, "end chat acct-1 QUOTA_UNAVAILABLE"},
		{`{"action":"end","connection":"acct-2"}`, 200, `"done": false`, "end chat acct-2 CONNECTION_INELIGIBLE"},
		{`{"action":"end","connection":"gone","pool":"old"}`, 200, `"pool": "old"`, "end old gone CONNECTION_INELIGIBLE"},
		{`{"action":"wake","connection":"acct-2"}`, 200, `"done": true`, "wake chat acct-2"},
		{`{"action":"wake","connection":"acct-1"}`, 200, `"done": false`, "wake chat acct-1"},
		{`{"action":"wake","connection":"broken"}`, 503, "The lease service is unavailable", "wake chat broken"},
		{`{"action":"cooldown","connection":"acct-1","for":"90s"}`, 200, `"done": true`, "cooldown chat acct-1 1m30s"},

		{`{"action":"end","connection":"gone"}`, 404, `no pool has a connection "gone"`, ""},
		{`{"action":"end"}`, 400, "connection: is empty", ""},
		{`{"action":"renew","connection":"acct-1"}`, 400, `action: "renew" is none of`, ""},
		{`{"action":"end","connection":"acct-1","reason":"TTL_EXPIRED"}`, 400, `reason: "TTL_EXPIRED" is none of`, ""},
		{`{"action":"wake","connection":"acct-1","reason":"QUOTA_UNAVAILABLE"}`, 400, "reason: wake has none", ""},
		{`{"action":"wake","connection":"acct-1","for":"1m"}`, 400, "for: wake takes no time", ""},
		{`{"action":"cooldown","connection":"acct-1"}`, 400, `for: "" is no time`, ""},
		{`{"action":"cooldown","connection":"acct-1","for":"-1m"}`, 400, `for: "-1m" is no time`, ""},
		{`{"action":"end","connection":"acct-1","force":true}`, 400, `unknown field "force"`, ""},
		{`{"action":"end","connection":"acct-1"}{}`, 400, "something follows", ""},
		{`{"action":`, 400, "read the operation", ""},
		{`{"action":"end","connection":"` + strings.Repeat("x", maxOperation) + `"}`, 400, "too large", ""},
	} {
		leases, log := &oneLease{}, &bytes.Buffer{}
		got := operate(t, operations(leases, log), "Bearer "+operatorToken, c.body)
		if got.Code != c.status || !strings.Contains(got.Body.String(), c.answer) {
			t.Errorf("%.80s: %d %s, want %d with %q", c.body, got.Code, got.Body, c.status, c.answer)
		}
		if call := strings.Join(leases.calls, ", "); call != c.call {
			t.Errorf("%.80s: did %q, want %q", c.body, call, c.call)
		}
		if audited := strings.Contains(log.String(), `"audit":true`); audited != (c.call != "") {
			t.Errorf("%.80s: the log says %q, want an audit line for what was done, and for that alone", c.body, log)
		}
	}
}

// TestAuditLine: who, what and with which outcome.
func TestAuditLine(t *testing.T) {
	t.Parallel()
	log := &bytes.Buffer{}
	operate(t, operations(&oneLease{}, log), "Bearer "+operatorToken, `{"action":"end","connection":"acct-1"}`)
	var line map[string]any
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatalf("%q: %v", log, err)
	}
	for key, want := range map[string]any{
		"level": "INFO", "audit": true, "action": "end", "pool": "chat", "connection": "acct-1", "done": true, "owner": "own_1",
		"principal": "prn_1", "generation": 7.0, "why": "CONNECTION_INELIGIBLE", "from": "192.0.2.1:1234",
	} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v; the line is %s", key, line[key], want, log)
		}
	}
}

// TestOperationsNeedTheToken: without it nothing happens, and the log says that somebody tried. No answer and no line shows a
// token.
func TestOperationsNeedTheToken(t *testing.T) {
	t.Parallel()
	const body = `{"action":"end","connection":"acct-1"}`
	for _, c := range []struct {
		name, authorization string
		token               func() (string, error)
		status              int
	}{
		{"none", "", nil, 401},
		{"wrong", "Bearer " + strings.Repeat("x", 32), nil, 401},
		{"a part of it", "Bearer " + operatorToken[:31], nil, 401},
		{"another scheme", "Basic " + operatorToken, nil, 401},
		{"without a scheme", operatorToken, nil, 401},
		{"no token is set", "Bearer ", func() (string, error) { return "", nil }, 403},
		{"it cannot be read", "Bearer " + operatorToken, func() (string, error) { return "", errors.New("secret path") }, 503},
	} {
		leases, log := &oneLease{}, &bytes.Buffer{}
		o := operations(leases, log)
		if c.token != nil {
			o.Token = c.token
		}
		got := operate(t, o, c.authorization, body)
		if got.Code != c.status || len(leases.calls) != 0 {
			t.Errorf("%s: %d %s and %q, want %d and nothing done", c.name, got.Code, got.Body, leases.calls, c.status)
		}
		if !strings.Contains(log.String(), `"audit":true`) || strings.Contains(log.String()+got.Body.String(), "0123456789") {
			t.Errorf("%s: answer %q, log %q; want a line, and no token in either", c.name, got.Body, log)
		}
	}
}
