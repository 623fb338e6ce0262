package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/headgate/headgate/internal/stack"
)

// denying is an RBAC filter that answers 403 to requests with the header x-denied.
func denying() *rbacv3.RBAC {
	denied := &routev3.HeaderMatcher{Name: "x-denied", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "y"}}}}
	return &rbacv3.RBAC{Rules: &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_DENY, Policies: map[string]*rbacconfigv3.Policy{"denied": {
		Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_Header{Header: denied}}},
		Principals:  []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}},
	}}}}
}

// TestAnEarlierFiltersAnswerIsNoAdmission: a filter before the processor refuses, and the processor sees nothing but that
// answer. It goes on as it is, takes no place in a lane that has one, and is counted as answered earlier.
func TestAnEarlierFiltersAnswerIsNoAdmission(t *testing.T) {
	t.Parallel()
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed, stack.ModeBuffered, stack.ModeFullDuplex, stack.ModeNone} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: oneAtATime("default", "100ms"), Envoy: []func(*stack.Bootstrap) error{
				func(b *stack.Bootstrap) error { return b.UseMode(mode) },
				func(b *stack.Bootstrap) error { return b.AddFilter("envoy.filters.http.rbac", denying(), false) },
			}})
			protocols(t, func(t *testing.T, c *http.Client) {
				before := decisions(t, s)
				for range 5 {
					got := must(t, s, c, request{method: "POST", path: "/x", body: strings.NewReader("{}"), headers: map[string]string{"x-denied": "yes"}})
					if got.status != 403 || got.reason() != "" || !strings.Contains(got.body, "RBAC") {
						t.Errorf("denied by the filter before ours = %d %q %q, want its 403", got.status, got.reason(), got.body)
					}
				}
				if got := must(t, s, c, request{path: "/x"}); got.status != 200 {
					t.Errorf("the next request = %d %q, want 200", got.status, got.reason())
				}
				after := decisions(t, s)
				if early, admitted := after["answered_earlier"]-before["answered_earlier"], after["admitted"]-before["admitted"]; early != 5 || admitted != 1 {
					t.Errorf("counted %d as answered earlier and %d as admitted, want 5 and 1 (%v)", early, admitted, after)
				}
			})
		})
	}
}

// TestNoSecondAnswer: the hard maximum is passed while the response runs. The client gets no second answer: what it has of the
// first is cut, and no upstream gets the whole body, also where requests pass when the sidecar fails.
func TestNoSecondAnswer(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("failOpen=", open), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}", Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
				if open {
					return b.FailOpen()
				}
				return nil
			}}})
			reader, writer := io.Pipe()
			defer writer.Close()
			out, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Envoy.URL()+"/early", reader)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = writer.Write([]byte("hello")) }()
			in, err := client(t, true).Do(out)
			if err != nil || in.StatusCode != 200 {
				t.Fatalf("no response before the end of the body: %v", err)
			}
			defer in.Body.Close()
			go func() { _, _ = io.Copy(writer, zeros(4*mebibyte)) }() // ends with the request
			text, err := io.ReadAll(in.Body)
			if err == nil || strings.Contains(string(text), "payload_too_large") {
				t.Errorf("the response ends with %.200q (%v), want it cut, without another answer in it", text[max(0, len(text)-200):], err)
			}
			eventually(t, "the exchange to end", func() bool { return health(t, s).Exchanges.InFlight == 0 })
			if n := s.Upstream.CountsOf("/early"); n.Completed != 0 {
				t.Errorf("the upstream served %+v, want nothing whole", n)
			}
		})
	}
}
