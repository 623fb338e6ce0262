package lease_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// call is one request to the HTTP API.
type call struct {
	key, owner, contentType, body, query string
	method                               string
}

func post(key string, n int, body string) call {
	return call{key: key, owner: rawOwner(n), contentType: "application/json", body: body}
}

func (c call) to(svc *lease.Service) *httptest.ResponseRecorder {
	method := c.method
	if method == "" {
		method = http.MethodPost
	}
	r := httptest.NewRequest(method, "/v1/session-leases"+c.query, strings.NewReader(c.body))
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.owner != "" {
		r.Header.Set("X-OmniRoute-Lease-Owner", c.owner)
	}
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	w := httptest.NewRecorder()
	svc.Handler(svc.IdentifyRequest).ServeHTTP(w, r)
	return w
}

func decode(t testing.TB, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("body %q: %v", w.Body, err)
	}
	return v
}

func code(t testing.TB, w *httptest.ResponseRecorder) string {
	t.Helper()
	e, _ := decode(t, w)["error"].(map[string]any)
	c, _ := e["code"].(string)
	return c
}

const acquireBody = `{"action":"acquire","model":"m"}`

func generation(t testing.TB, w *httptest.ResponseRecorder) string {
	t.Helper()
	g, _ := decode(t, w)["generation"].(float64)
	return strconv.FormatInt(int64(g), 10)
}

func TestAPIAnswersInOrder(t *testing.T) {
	t.Parallel()
	s := settings("acct-1")
	list := append(managers(s),
		lease.Principal{ID: "plain", KeySHA256: lease.HashKey("key-plain")},
		lease.Principal{ID: "empty", KeySHA256: lease.HashKey("key-empty"), Scopes: []string{"lease:exclusive"}})
	svc, err := lease.New(s, list, lease.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close()
	long := strings.Repeat("m", 513)
	// Each row has every fault of the rows below it, so that it can only be answered for its own.
	for _, c := range []struct {
		name   string
		call   call
		status int
		code   lease.Reason
	}{
		{"no key", call{}, 401, lease.AuthenticationRequired},
		{"unknown key", call{key: "wrong"}, 401, lease.APIKeyInvalid},
		{"no content type", call{key: "key-plain", body: "{"}, 415, lease.ContentTypeRequired},
		{"another content type", call{key: "key-plain", contentType: "text/plain", body: "{"}, 415, lease.ContentTypeRequired},
		{"no JSON", call{key: "key-plain", contentType: "application/json", body: "{"}, 400, lease.ActionInvalid},
		{"unknown action", call{key: "key-plain", contentType: "application/json", body: `{"action":"steal","model":""}`}, 400, lease.ActionInvalid},
		{"no model", call{key: "key-plain", contentType: "application/json", body: `{"action":"acquire"}`}, 400, lease.ModelInvalid},
		{"empty model", call{key: "key-plain", contentType: "application/json", body: `{"action":"acquire","model":" "}`}, 400, lease.ModelInvalid},
		{"long model", call{key: "key-plain", contentType: "application/json", body: `{"action":"acquire","model":"` + long + `"}`}, 400, lease.ModelInvalid},
		{"no scope", call{key: "key-plain", contentType: "application/json; charset=utf-8", body: acquireBody}, 403, lease.ScopeRequired},
		{"no connections", call{key: "key-empty", contentType: "application/json", body: acquireBody}, 403, lease.KeyConfigurationInvalid},
		{"no owner", call{key: "key-a", contentType: "application/json", body: acquireBody}, 400, lease.ContextRequired},
		{"bad owner", call{key: "key-a", contentType: "application/json", body: acquireBody, owner: "vlo_short"}, 400, lease.ContextInvalid},
		{"nothing to renew", post("key-a", 1, `{"action":"renew","generation":1}`), 409, lease.FenceStale},
		{"all good", post("key-a", 1, acquireBody), 200, ""},
		{"512 characters that are more bytes", post("key-a", 1, `{"action":"acquire","model":"`+long[:511]+`é"}`), 200, ""},
	} {
		w := c.call.to(svc)
		if w.Code != c.status || (c.code != "" && code(t, w) != string(c.code)) {
			t.Errorf("%s: %d %s, want %d %s", c.name, w.Code, w.Body, c.status, c.code)
		}
		if got := w.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: content type %q", c.name, got)
		}
		if c.code != "" && (w.Header().Get("X-Headgate-Reason") != string(c.code) || w.Header().Get("Retry-After") != "") {
			t.Errorf("%s: headers %v, want the reason and no Retry-After", c.name, w.Header())
		}
		if w.Body.Len() > 512 {
			t.Errorf("%s: body of %d bytes", c.name, w.Body.Len())
		}
	}
}

func TestAPIBodiesAreStrict(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	for _, body := range []string{
		``, `null`, `[]`, `"acquire"`, `{}`, `{"action":null}`, `{"action":1}`, `{"action":"acquire","model":"m"`,
		`{"action":"acquire","model":"m"} {}`, `{"action":"acquire","model":"m"}x`, `{"action":"acquire","model":"m","extra":1}`,
		`{"Action":"acquire","model":"m"}`, `{"action":"ACQUIRE","model":"m"}`, `{"action":"acquire","action":"acquire","model":"m"}`,
		`{"action":"acquire","model":"m","generation":1}`, `{"action":"renew"}`, `{"action":"renew","generation":0}`,
		`{"action":"renew","generation":-1}`, `{"action":"renew","generation":1.5}`, `{"action":"renew","generation":1e3}`,
		`{"action":"renew","generation":"1"}`, `{"action":"renew","generation":9007199254740992}`, `{"action":"renew","generation":null}`,
		`{"action":"renew","generation":1,"reason":"OWNER_EXIT"}`, `{"action":"release","generation":1,"reason":"TTL_EXPIRED"}`,
		`{"action":"release","generation":1,"reason":""}`, `{"action":"release","generation":1,"reason":null}`,
		`{"action":"status","generation":1,"model":"m"}`,
	} {
		w := post("key-a", 1, body).to(svc)
		if w.Code != 400 || code(t, w) != string(lease.ActionInvalid) {
			t.Errorf("%s: %d %s, want 400 %s", body, w.Code, w.Body, lease.ActionInvalid)
		}
	}
	for _, body := range []string{`{"action":"acquire","model":1}`, `{"action":"acquire","model":null}`, `{"action":"acquire","model":["m"]}`} {
		if w := post("key-a", 1, body).to(svc); w.Code != 400 || code(t, w) != string(lease.ModelInvalid) {
			t.Errorf("%s: %d %s, want 400 %s", body, w.Code, w.Body, lease.ModelInvalid)
		}
	}
	pad := func(n int) string { return acquireBody + strings.Repeat(" ", n-len(acquireBody)) }
	if w := post("key-a", 1, pad(16<<10)).to(svc); w.Code != 200 {
		t.Errorf("16 KiB: %d %s, want 200", w.Code, w.Body)
	}
	if w := post("key-a", 1, pad(16<<10+1)).to(svc); w.Code != 413 || code(t, w) != string(lease.ActionInvalid) {
		t.Errorf("16 KiB and a byte: %d %s, want 413 %s", w.Code, w.Body, lease.ActionInvalid)
	}
}

func TestAPILifeOfALease(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	keysOf := func(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
	public := []string{"acquiredAt", "expiresAt", "generation", "renewedAt", "state"}

	first := post("key-a", 1, acquireBody).to(svc)
	body := decode(t, first)
	if first.Code != 200 || body["state"] != "ACTIVE" || !slices.Equal(keysOf(body), public) {
		t.Fatalf("acquire: %d %s, want 200 ACTIVE with %v", first.Code, first.Body, public)
	}
	for _, name := range []string{"acquiredAt", "renewedAt", "expiresAt"} {
		text, _ := body[name].(string)
		if _, err := time.Parse("2006-01-02T15:04:05.000Z", text); err != nil {
			t.Errorf("%s is %q, want ISO 8601 in UTC", name, text)
		}
	}
	g := generation(t, first)
	if again := post("key-a", 1, acquireBody).to(svc); again.Code != 200 || generation(t, again) != g {
		t.Errorf("acquire again: %d %s, want generation %s", again.Code, again.Body, g)
	}
	for _, c := range []struct {
		what, body string
		key        string
		owner      int
		status     int
	}{
		{"renew", `{"action":"renew","generation":` + g + `}`, "key-a", 1, 200},
		{"renew of another generation", `{"action":"renew","generation":1}`, "key-a", 1, 409},
		{"renew with another key", `{"action":"renew","generation":` + g + `}`, "key-b", 1, 409},
		{"renew by another owner", `{"action":"renew","generation":` + g + `}`, "key-a", 2, 409},
		{"status with another key", `{"action":"status","generation":` + g + `}`, "key-b", 1, 409},
		{"status", `{"action":"status","generation":` + g + `}`, "key-a", 1, 200},
		{"release with another key", `{"action":"release","generation":` + g + `}`, "key-b", 1, 409},
		{"release", `{"action":"release","generation":` + g + `,"reason":"CLIENT_CANCELLED"}`, "key-a", 1, 200},
		{"release again", `{"action":"release","generation":` + g + `}`, "key-a", 1, 200},
		{"status after release", `{"action":"status","generation":` + g + `}`, "key-a", 1, 409},
	} {
		w := post(c.key, c.owner, c.body).to(svc)
		if w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.what, w.Code, w.Body, c.status)
		}
		if w.Code == 409 && code(t, w) != string(lease.FenceStale) {
			t.Errorf("%s: %s, want %s", c.what, w.Body, lease.FenceStale)
		}
		if strings.HasPrefix(c.what, "release") && w.Code == 200 && decode(t, w)["state"] != "RELEASED" {
			t.Errorf("%s: %s, want RELEASED", c.what, w.Body)
		}
		if w.Code == 200 && c.what != "status" && !slices.Equal(keysOf(decode(t, w)), public) {
			t.Errorf("%s: fields %v, want %v", c.what, keysOf(decode(t, w)), public)
		}
	}
}

func TestAPIStatusShowsNoPersonAndNoIdentifier(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]any{"Account One": "Account One", "": nil, "someone@example.com": nil} {
		s := settings("acct-secret")
		s.Pools[pool].Connections[0].DisplayName = name
		s.Pools[pool].Connections[0].Provider = "glm"
		svc := newService(t, s)
		g := generation(t, post("key-a", 1, acquireBody).to(svc))
		w := post("key-a", 1, `{"action":"status","generation":`+g+`}`).to(svc)
		connection, _ := decode(t, w)["connection"].(map[string]any)
		if w.Code != 200 || connection["displayName"] != want || connection["provider"] != "glm" || len(connection) != 2 {
			t.Errorf("display name %q: %d %s, want displayName %v and provider glm", name, w.Code, w.Body, want)
		}
		for _, secret := range []string{"acct-secret", rawOwner(1), string(owner(t, 1)), "key-a", lease.HashKey("key-a"), teamA, "@"} {
			if strings.Contains(w.Body.String(), secret) {
				t.Errorf("status shows %q: %s", secret, w.Body)
			}
		}
	}
}

func TestAPIWaitingForCapacity(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	if w := post("key-a", 1, acquireBody).to(svc); w.Code != 200 {
		t.Fatal(w.Body)
	}
	w := post("key-b", 2, acquireBody).to(svc)
	body := decode(t, w)
	seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if w.Code != 429 || err != nil || seconds < 1 || seconds > 120 || body["retryAfter"] != float64(seconds) {
		t.Errorf("%d Retry-After %q %s, want 429 and the same 1 to 120 s in both", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
	want := map[string]any{
		"state": "WAITING_FOR_CAPACITY", "reason": "NO_FREE_ELIGIBLE_CONNECTION", "eligibleCount": 1.0, "freeCount": 0.0,
		"retryAfter": float64(seconds),
	}
	e, _ := body["error"].(map[string]any)
	if e["type"] != "lease_error" || e["code"] != "LEASE_CAPACITY_UNAVAILABLE" || e["message"] == "" || len(e) != 3 {
		t.Errorf("error %v", e)
	}
	delete(body, "error")
	if !maps.Equal(body, want) {
		t.Errorf("body %v, want %v", body, want)
	}
	if strings.Contains(w.Body.String(), rawOwner(1)) || strings.Contains(w.Body.String(), "acct-1") {
		t.Errorf("the answer names who or what: %s", w.Body)
	}
}

func TestAPIOtherMethods(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	if w := (call{method: http.MethodOptions}).to(svc); w.Code != 204 || w.Body.Len() != 0 || w.Header().Get("Allow") != "POST, OPTIONS" {
		t.Errorf("OPTIONS: %d %q %v, want 204 and Allow", w.Code, w.Body, w.Header())
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if w := (call{method: method, key: "key-a"}).to(svc); w.Code != 405 || w.Header().Get("Allow") == "" {
			t.Errorf("%s: %d, want 405", method, w.Code)
		}
	}
}

// TestAPIFromABrowser: a page of any origin may send what a client has to, and may read why it was refused and when to come
// back. It cannot send the headers that name a caller to an API that only Envoy reaches.
func TestAPIFromABrowser(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	preflight := (call{method: http.MethodOptions}).to(svc).Header()
	allowed := strings.Split(preflight.Get("Access-Control-Allow-Headers"), ", ")
	want := []string{"authorization", "content-type", "x-api-key", "x-omniroute-lease-generation", "x-omniroute-lease-owner"}
	if slices.Sort(allowed); !slices.Equal(allowed, want) {
		t.Errorf("a preflight allows %q, want %q", allowed, want)
	}
	if got := preflight.Get("Access-Control-Allow-Methods"); got != "POST" {
		t.Errorf("a preflight allows the methods %q, want POST", got)
	}
	for name, h := range map[string]http.Header{
		"preflight": preflight, "acquire": post("key-a", 1, acquireBody).to(svc).Header(), "refusal": post("nobody", 1, acquireBody).to(svc).Header(),
	} {
		if got := h.Get("Access-Control-Allow-Origin"); got != "*" || h.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: allows the origin %q, credentials %q; want * and none", name, got, h.Get("Access-Control-Allow-Credentials"))
		}
		if exposed := h.Get("Access-Control-Expose-Headers"); name != "preflight" && exposed != "retry-after, x-headgate-reason" {
			t.Errorf("%s: exposes %q, want retry-after, x-headgate-reason", name, exposed)
		}
	}
}

func TestAPIFindsThePoolOfThePrincipal(t *testing.T) {
	t.Parallel()
	// Given two pools; the first does not serve the model
	s := settings("acct-1")
	s.Pools = map[string]lease.PoolSettings{
		"a": {Connections: []lease.ConnectionSettings{{ID: "acct-a", Models: []string{"other"}}}},
		"b": {Connections: []lease.ConnectionSettings{{ID: "acct-b"}}},
	}
	svc := newService(t, s)
	// when no pool is named, then the one that can serve is used, by every action
	w := post("key-a", 1, acquireBody).to(svc)
	if w.Code != 200 {
		t.Fatalf("acquire: %d %s", w.Code, w.Body)
	}
	listing, err := svc.List(context.Background(), "b", 0)
	if err != nil || listing.Connections[0].State != "leased" {
		t.Errorf("pool b: %+v %v, want its connection leased", listing, err)
	}
	if w := post("key-a", 1, `{"action":"renew","generation":`+generation(t, w)+`}`).to(svc); w.Code != 200 {
		t.Errorf("renew: %d %s", w.Code, w.Body)
	}
	// when a pool is named, then only that one is
	c := post("key-a", 2, acquireBody)
	c.query = "?pool=a"
	if w := c.to(svc); w.Code != 409 || code(t, w) != string(lease.NoEligibleConnection) {
		t.Errorf("acquire in pool a: %d %s, want 409 %s", w.Code, w.Body, lease.NoEligibleConnection)
	}
	c.query = "?pool=unknown"
	if w := c.to(svc); w.Code != 409 || code(t, w) != string(lease.NoEligibleConnection) {
		t.Errorf("acquire in an unknown pool: %d %s, want 409 %s", w.Code, w.Body, lease.NoEligibleConnection)
	}
}

func TestListingIsForOperators(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1", "acct-2", "acct-3"))
	g := generation(t, post("key-a", 1, acquireBody).to(svc))
	if r := svc.SetCooldown(context.Background(), pool, "acct-3", time.Minute); r != nil {
		t.Fatal(r.Reason)
	}
	w := httptest.NewRecorder()
	svc.ListHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/session-leases?events=5", nil))
	var out struct{ Pools []lease.PoolListing }
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 || len(out.Pools) != 1 {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	states := map[string]string{}
	for _, c := range out.Pools[0].Connections {
		states[c.ID] = c.State
	}
	if want := map[string]string{"acct-1": "leased", "acct-2": "free", "acct-3": "cooldown"}; !maps.Equal(states, want) {
		t.Errorf("states %v, want %v", states, want)
	}
	l := out.Pools[0].Connections[0].Lease
	if l == nil || strconv.FormatInt(l.Generation, 10) != g || !strings.HasPrefix(l.Owner, "own_") || !strings.HasPrefix(l.Principal, "prn_") {
		t.Errorf("lease %+v, want generation %s and opaque owner and principal", l, g)
	}
	if len(out.Pools[0].Events) != 1 || out.Pools[0].Events[0].Event != "acquired" {
		t.Errorf("events %+v, want acquired", out.Pools[0].Events)
	}
	for _, secret := range []string{rawOwner(1), string(owner(t, 1)), "key-a", lease.HashKey("key-a"), teamA} {
		if strings.Contains(w.Body.String(), secret) {
			t.Errorf("the listing shows %q", secret)
		}
	}
	w = httptest.NewRecorder()
	svc.ListHandler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/session-leases", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}
