package extproc

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// TestRepeatedHeadersCountWithTheirFirstValue: whatever a client appends changes nothing.
func TestRepeatedHeadersCountWithTheirFirstValue(t *testing.T) {
	r := newRig(t, nil)
	p := r.server.policy.Load()
	read := func(pairs ...string) facts {
		t.Helper()
		data, err := proto.Marshal(rh(early, false, pairs...))
		if err != nil {
			t.Fatal(err)
		}
		var m wire.Message
		if err := m.Decode(mem.BufferSlice{mem.SliceBuffer(data)}); err != nil {
			t.Fatal(err)
		}
		return readFacts(&m, p)
	}
	for name, same := range map[string]func(f facts) any{
		":method":                        func(f facts) any { return f.bodyless },
		"content-type":                   func(f facts) any { return f.grpc },
		"upgrade":                        func(f facts) any { return f.upgrade },
		lease.ConnectionHeader:           func(f facts) any { return f.connection },
		"traceparent":                    func(f facts) any { return f.traceparent },
		"grpc-timeout":                   func(f facts) any { return f.timeout },
		"x-envoy-expected-rq-timeout-ms": func(f facts) any { return f.timeout },
		"x-tenant-id":                    func(f facts) any { return f.tenant },
	} {
		values := map[string][]string{
			":method": {"POST", "GET"}, "content-type": {"application/json", "application/grpc"}, "upgrade": {"", "websocket"},
			"grpc-timeout": {"5S", "1S"}, "x-envoy-expected-rq-timeout-ms": {"5000", "1"},
		}[name]
		if values == nil {
			values = []string{"a", "b"}
		}
		for _, second := range []string{values[1], ""} {
			once, twice := read(":method", "POST", name, values[0]), read(":method", "POST", name, values[0], name, second)
			if name == ":method" {
				once, twice = read(name, values[0]), read(name, values[0], name, second)
			}
			if same(once) != same(twice) {
				t.Errorf("%s: %q followed by %q counts as %v, want %v as the first alone", name, values[0], second, same(twice), same(once))
			}
		}
	}
}

// TestRepeatedLeaseHeadersAreNone: of two owners or generations none counts, whatever they are.
func TestRepeatedLeaseHeadersAreNone(t *testing.T) {
	p := newRig(t, nil).server.policy.Load()
	owner := "vlo_" + strings.Repeat("A", 43)
	for _, values := range [][]string{{owner, owner}, {owner, ""}, {"", owner}} {
		f := readFacts(decoded(t, rh(early, false, lease.OwnerHeader, values[0], lease.OwnerHeader, values[1], lease.GenerationHeader, "1")), p)
		if _, _, refusal := lease.CheckSyntax(f.leaseOwner, f.leaseGen); refusal == nil || refusal.Reason != lease.ContextInvalid {
			t.Errorf("owners %q: %v, want %s", values, refusal, lease.ContextInvalid)
		}
	}
	for _, values := range [][]string{{"1", "1"}, {"1", ""}, {"", "1"}} {
		f := readFacts(decoded(t, rh(early, false, lease.OwnerHeader, owner, lease.GenerationHeader, values[0], lease.GenerationHeader, values[1])), p)
		if _, _, refusal := lease.CheckSyntax(f.leaseOwner, f.leaseGen); refusal == nil || refusal.Reason != lease.ContextInvalid {
			t.Errorf("generations %q: %v, want %s", values, refusal, lease.ContextInvalid)
		}
	}
}

// TestForgedParentTokensAreRemoved: one that does not verify never goes on, in whatever order it comes with others; one
// that verifies goes on alone.
func TestForgedParentTokensAreRemoved(t *testing.T) {
	r := newRig(t, nil)
	valid := r.parents.Issue(adaptive.Parent{Lane: "l", Cluster: "x", Depth: 1})
	for _, c := range []struct {
		name    string
		tokens  []string
		removed bool
		set     string // overwrites what came
	}{
		{"none", nil, false, ""},
		{"valid", []string{valid}, false, ""},
		{"forged", []string{"forged"}, true, ""},
		{"empty", []string{""}, true, ""},
		{"forged, then empty", []string{"forged", ""}, true, ""},
		{"empty, then forged", []string{"", "forged"}, true, ""},
		{"forged, then valid", []string{"forged", valid}, true, ""},
		{"empty, then valid", []string{"", valid}, true, ""},
		{"valid, then forged", []string{valid, "forged"}, false, valid},
		{"valid, then empty", []string{valid, ""}, false, valid},
	} {
		headers := []string{":method", "GET"}
		for _, token := range c.tokens {
			headers = append(headers, headerParent, token)
		}
		s := r.open()
		s.send(rh(early, true, headers...))
		m := s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
		set := ""
		for _, h := range m.GetSetHeaders() {
			if h.GetHeader().GetKey() == headerParent {
				set = string(h.GetHeader().GetRawValue())
			}
		}
		if removed := slices.Contains(m.GetRemoveHeaders(), headerParent); removed != c.removed || set != c.set {
			t.Errorf("%s: removed %t, set to %q; want %t and %q", c.name, removed, set, c.removed, c.set)
		}
		s.finish()
	}
}

func TestCallerTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grpc, expected string
		want           time.Duration
	}{
		{"", "", 0},
		{"5S", "", 5 * time.Second},
		{"250m", "", 250 * time.Millisecond},
		{"0S", "", time.Nanosecond}, // has passed
		{"99999999H", "", math.MaxInt64},
		{"1u", "", time.Microsecond},
		{"7n", "", 7},
		{"2M", "", 2 * time.Minute},
		{"123456789S", "", 0}, {"S", "", 0}, {"5", "", 0}, {"5s", "", 0}, {"-5S", "", 0}, {"+5S", "", 0}, {"5 S", "", 0}, {"", "soon", 0},
		{"", "1500", 1500 * time.Millisecond},
		{"", "0", 0}, {"", "-1", 0}, {"", "99999999999999999999", 0}, {"", "9223372036854775807", 0},
		{"5S", "1500", 1500 * time.Millisecond},
		{"1S", "1500", time.Second},
		{"bad", "1500", 1500 * time.Millisecond},
	} {
		if got := callerTimeout(c.grpc, c.expected); got != c.want {
			t.Errorf("grpc-timeout %q, x-envoy-expected-rq-timeout-ms %q: %v, want %v", c.grpc, c.expected, got, c.want)
		}
	}
}
