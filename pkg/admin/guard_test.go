package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTheAdminPortAnswersItsOwnersOnly: a page elsewhere reaches it neither through a name of its own nor from its own site.
func TestTheAdminPortAnswersItsOwnersOnly(t *testing.T) {
	t.Parallel()
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
		func() []string { return []string{"headgate.internal"} })
	for _, c := range []struct {
		host    string
		headers []string
		want    int
	}{
		{"127.0.0.1:9003", nil, 200},
		{"localhost:9003", nil, 200},
		{"LOCALHOST", nil, 200},
		{"a.localhost:1", nil, 200},
		{"[::1]:9003", nil, 200},
		{"[fe80::1%eth0]:9003", nil, 200},
		{"10.1.2.3:9003", nil, 200}, // a probe or a scrape by the pod's address
		{"", nil, 200},
		{"headgate.internal:9003", nil, 200},
		{"Headgate.Internal", nil, 200},
		{"evil.example:9003", nil, 403},
		{"localhost.evil.example", nil, 403},
		{"127.0.0.1.nip.io:9003", nil, 403},
		{"127.0.0.1:9003", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"127.0.0.1:9003", []string{"Sec-Fetch-Site", "none"}, 200},
		{"127.0.0.1:9003", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"127.0.0.1:9003", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},
		{"127.0.0.1:9003", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"127.0.0.1:9003", []string{"Origin", "http://evil.example"}, 403},
		{"127.0.0.1:9003", []string{"Origin", "null"}, 403},
		{"127.0.0.1:9003", []string{"Origin", "http://127.0.0.1:9003"}, 200},
	} {
		r := httptest.NewRequest(http.MethodGet, "/config", nil)
		r.Host = c.host
		for i := 0; i+1 < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("host %q, headers %v: %d, want %d", c.host, c.headers, w.Code, c.want)
		}
	}
}

// TestLinksFromElsewhereLeadToTheStatusPageOnly: following a link is no attack; a page that opens a profile in a frame is one.
func TestLinksFromElsewhereLeadToTheStatusPageOnly(t *testing.T) {
	t.Parallel()
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
		func() []string { return nil })
	for _, c := range []struct {
		method, path, site, dest string
		want                     int
	}{
		{"GET", "/", "cross-site", "document", 200},
		{"GET", "/", "same-site", "document", 200},
		{"GET", "/", "cross-site", "iframe", 403},
		{"GET", "/", "cross-site", "object", 403},
		{"POST", "/", "cross-site", "document", 403},
		{"GET", "/config", "cross-site", "document", 403},
		{"GET", "/debug/pprof/profile", "cross-site", "document", 403},
		{"GET", "/debug/pprof/profile", "same-site", "iframe", 403},
		{"GET", "/debug/pprof/profile", "none", "document", 200},
		{"GET", "/config", "same-origin", "document", 200},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:9003"+c.path, nil)
		r.Header.Set("Sec-Fetch-Site", c.site)
		r.Header.Set("Sec-Fetch-Mode", "navigate")
		r.Header.Set("Sec-Fetch-Dest", c.dest)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s %s from %s into %s: %d, want %d", c.method, c.path, c.site, c.dest, w.Code, c.want)
		}
	}
}
