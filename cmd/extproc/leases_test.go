package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// leasesCommand runs extproc leases against an admin port that answers as told, and returns what it printed, what was
// asked, and its error.
func leasesCommand(t *testing.T, status int, contentType, answer string, args ...string) (printed string, asked *http.Request, body string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		asked, body = r.Clone(t.Context()), string(sent)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	var out, errs bytes.Buffer
	command := newCommand(strings.NewReader(""), &out, &errs)
	command.SetArgs(append([]string{"leases", "--address", strings.TrimPrefix(server.URL, "http://")}, args...))
	err = command.ExecuteContext(t.Context())
	return out.String(), asked, body, err
}

// TestLeasesListShowsWhatThereIs: also of pools whose store does not answer, which is an error at the end.
func TestLeasesListShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	const listing = `{"pools":[
		{"pool":"chat","connections":[
			{"id":"acct-1","state":"leased","configured":true,"lease":{"owner":"own_1","principal":"prn_1","generation":7,"token":8,"acquiredAt":"2026-01-01T00:00:00Z","renewedAt":"2026-01-01T00:00:00Z","expiresAt":"2026-01-01T00:02:00Z"}},
			{"id":"acct-2","state":"cooldown","configured":true,"cooldownUntil":"2026-01-01T00:05:00Z"}],
		 "events":[{"at":"2026-01-01T00:00:00Z","event":"acquired","owner":"own_1","generation":"7","connection":"acct-1"}]},
		{"pool":"other","connections":[],"error":"lease store unavailable"}]}`
	got, asked, _, err := leasesCommand(t, http.StatusServiceUnavailable, "application/json", listing, "list", "--pool", "chat", "--events", "3")
	if asked.Method != http.MethodGet || asked.URL.RequestURI() != "/v1/session-leases?events=3&pool=chat" || asked.Header.Get("Authorization") != "" {
		t.Errorf("asked %s %s with %q, want a GET of three events of chat, without a token", asked.Method, asked.URL, asked.Header.Get("Authorization"))
	}
	for _, want := range []string{
		"chat  acct-1      leased    own_1  prn_1      7           2026-01-01T00:00:00Z  2026-01-01T00:02:00Z  -",
		"chat  acct-2      cooldown  -      -          -           -                     -                     2026-01-01T00:05:00Z",
		"2026-01-01T00:00:00Z chat acquired acct-1 own_1 7",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("printed\n%s\nwant a line %q", got, want)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "pool other: lease store unavailable") {
		t.Errorf("error %v, want that of the pool whose store does not answer", err)
	}
}

// TestLeasesCommandsSendWhatTheyAreTold: with the token of the file.
func TestLeasesCommandsSendWhatTheyAreTold(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("t", 32)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args       []string
		answer     string
		body, says string
	}{
		{[]string{"end", "acct-1"}, `{"pool":"chat","connection":"acct-1","done":true,"lease":{"owner":"own_1","generation":7}}`,
			`{"action":"end","connection":"acct-1"}`, "ended the lease of own_1 on acct-1, generation 7"},
		{[]string{"end", "acct-1", "--pool", "old", "--reason", "QUOTA_UNAVAILABLE"}, `{"connection":"acct-1"}`,
			`{"action":"end","connection":"acct-1","pool":"old","reason":"QUOTA_UNAVAILABLE"}`, "nobody holds a lease on acct-1"},
		{[]string{"wake", "acct-2"}, `{"connection":"acct-2","done":true}`, `{"action":"wake","connection":"acct-2"}`, "ended the cooldown of acct-2"},
		{[]string{"wake", "acct-2"}, `{"connection":"acct-2"}`, `{"action":"wake","connection":"acct-2"}`, "acct-2 is in no cooldown"},
		{[]string{"cooldown", "acct-2", "--for", "90s"}, `{"connection":"acct-2","done":true}`,
			`{"action":"cooldown","connection":"acct-2","for":"1m30s"}`, "acct-2 is in cooldown for 1m30s"},
	} {
		got, asked, body, err := leasesCommand(t, http.StatusOK, "application/json", c.answer, append(c.args, "--token-file", file)...)
		if err != nil || !strings.Contains(got, c.says) {
			t.Errorf("%v: %q and %v, want %q", c.args, got, err, c.says)
			continue
		}
		if asked.Method != http.MethodPost || asked.Header.Get("Authorization") != "Bearer "+token || body != c.body {
			t.Errorf("%v: %s with %q and %s, want a POST with the token and %s", c.args, asked.Method, asked.Header.Get("Authorization"), body, c.body)
		}
	}
	if _, _, _, err := leasesCommand(t, http.StatusNotFound, "text/plain; charset=utf-8", "no pool has a connection \"x\x1b\"\n", "end", "x", "--token-file", file); err == nil || !strings.Contains(err.Error(), `404 Not Found: no pool has a connection "x?"`) {
		t.Errorf("a refusal: %v, want the sidecar's words on one line", err)
	}
}
