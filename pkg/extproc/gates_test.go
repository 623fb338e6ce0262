package extproc

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
)

func TestPressureComesBeforeEverything(t *testing.T) {
	r := newRig(t, nil)
	r.pressure.Store(&memory.Pressure{Severity: memory.Critical})
	for _, headers := range [][]string{nil, {"content-length", "2000000"}} {
		s := r.open()
		s.send(rh(early, headers == nil, headers...))
		status, reason, retry, _ := s.refusal()
		if status != 503 || reason != "resource_pressure" || !between(retry, 2, 4) {
			t.Errorf("%v: %d %s, retry-after %q; want 503 resource_pressure, 2 to 4", headers, status, reason, retry)
		}
	}
	if n := r.bytes.Snapshot().ShedsByReason[budget.ResourcePressure]; n != 2 {
		t.Errorf("%d sheds counted, want 2", n)
	}
}

// TestStructure: what a body contains can make it heavy, or be too much.
func TestStructure(t *testing.T) {
	messages := func(n int) string { return `{"messages":[` + strings.TrimSuffix(strings.Repeat("1,", n), ",") + `]}` }
	r := newRig(t, func(c *config.Config) {
		one := 1
		none := 0
		c.Bytes.HeavySlots, c.Bytes.HealthyHeadroom = &one, &none
		c.Bytes.Structure.Messages, c.Bytes.Structure.HardMaxMessages = 3, 5
		c.Bytes.Queue.CalmWait = 50 * time.Millisecond
	})
	light := r.open()
	light.send(rh(early, false), rb(messages(2), true))
	light.wants("RH", "RB")
	heavy := r.open()
	heavy.send(rh(early, false), rb(messages(3), true))
	heavy.wants("RH", "RB")
	if s := r.bytes.Snapshot(); s.ActiveHeavy != 1 || s.InflightBytes != 256<<10 {
		t.Errorf("%d heavy with %d bytes, want 1 with 262144", s.ActiveHeavy, s.InflightBytes)
	}
	second := r.open()
	second.send(rh(early, false), rb(messages(4), true))
	status, reason, retry, _ := second.refusal()
	if status != 503 || reason != "structure_limit" || retry == "" {
		t.Errorf("second heavy one: %d %s, retry-after %q; want 503 structure_limit with one", status, reason, retry)
	}
	many := r.open()
	many.send(rh(early, false), rb(messages(6), true))
	many.refused(413, "message_limit")
	light.finish()
	heavy.finish()
}

// TestGRPCCallersSeeAGRPCStatus, and nobody else does.
func TestGRPCCallersSeeAGRPCStatus(t *testing.T) {
	r := newRig(t, nil)
	for contentType, want := range map[string]int{
		"application/grpc": 8, "application/grpc+proto": 8, "application/grpc+json": 8, "application/grpc-web": 8,
		"application/grpc-web+proto": 8, "application/grpc; charset=utf-8": 8, "Application/GRPC": 8,
		"application/graphql": -1, "application/grpcfoo": -1, "application/json": -1, "": -1,
	} {
		s := r.open()
		s.send(rh(early, false, ":method", "POST", "content-type", contentType, "content-length", "2000000"))
		if _, _, _, got := s.refusal(); got != want {
			t.Errorf("%q: gRPC status %d, want %d (-1 is none)", contentType, got, want)
		}
	}
	r.pressure.Store(&memory.Pressure{Severity: memory.Critical})
	s := r.open()
	s.send(rh(early, false, ":method", "POST", "content-type", "application/grpc"))
	if _, _, _, got := s.refusal(); got != 14 {
		t.Errorf("under pressure: gRPC status %d, want 14", got)
	}
}

// TestUpgradesAreNoBodies: frames are not counted, and each is answered.
func TestUpgradesAreNoBodies(t *testing.T) {
	r := newRig(t, nil)
	for name, headers := range map[string][]string{
		"WebSocket over HTTP/1.1": {":method", "GET", "connection", "Upgrade", "upgrade", "websocket"},
		"WebSocket over HTTP/2":   {":method", "CONNECT", ":protocol", "websocket"},
		"CONNECT":                 {":method", "CONNECT"},
	} {
		s := r.open()
		s.send(rh(early, false, headers...))
		s.wants("RH")
		s.send(sh("101", false))
		s.wants("SH")
		for range 48 {
			s.send(rb(bytesOf(64<<10), false))
			s.wants("RB")
		}
		if got := r.bytes.Snapshot().InflightBytes; got != 0 {
			t.Errorf("%s: %d bytes reserved for frames, want 0", name, got)
		}
		s.finish()
	}
	s := r.open()
	s.send(rh(early, false, ":method", "GET", "upgrade", "websocket"))
	s.wants("RH")
	s.send(sh("200", false)) // the upstream did not switch: this is a body after all
	s.wants("SH")
	s.send(rb(bytesOf(mib+1), false))
	s.refused(413, "payload_too_large") // too late to say so to the client: Envoy resets its stream
}

func TestParentTokens(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		enforce(150)(c)
		any := c.Clusters[config.AnyCluster]
		any.Fanout.IssueParent = true
		any.Lanes.VirtualLanes = true
		c.Clusters[config.AnyCluster] = any
	})
	gateway := r.open()
	gateway.send(rh(early, true, "x-headgate-parent", "forged", "x-headgate-lane", "gold", "x-omniroute-admission-bypass", "internal", "x-tenant-id", "a"))
	mutation := gateway.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
	token := ""
	for _, h := range mutation.GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-headgate-parent" {
			token = string(h.GetHeader().GetRawValue())
		}
	}
	removed := strings.Join(mutation.GetRemoveHeaders(), " ")
	if !strings.Contains(removed, "x-headgate-lane") || !strings.Contains(removed, "x-omniroute-admission-bypass") {
		t.Errorf("removed %q, want every internal header", removed)
	}
	parent, err := r.parents.Verify(token)
	if err != nil || parent.Cluster != "chat" || parent.Depth != 1 || !strings.HasPrefix(parent.Lane, "lane_") {
		t.Fatalf("issued token is %+v, %v; want cluster chat, depth 1, an opaque lane", parent, err)
	}

	foreign := adaptive.NewParentTokens(nil, time.Minute, 3).Issue(adaptive.Parent{Lane: "a", Cluster: "chat", Depth: 1})
	expired := r.parents.Issue(adaptive.Parent{Lane: "a", Cluster: "chat", Depth: 1, Expires: time.Now().Add(-time.Second)})
	for name, bad := range map[string]string{"forged": "x", "foreign": foreign, "expired": expired, "upper-cased": strings.ToUpper(token)} {
		s := r.open()
		s.send(rh(early, false, "content-length", "300000", "x-headgate-parent", bad))
		s.send(chunks(bytesOf(300_000), 300_000)...)
		set := s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
		if len(set) != 1 || string(set[0].GetHeader().GetRawValue()) == bad {
			t.Errorf("%s token: headers set are %v, want it overwritten", name, set)
		}
		s.wants("RB")
		if got := r.bytes.Snapshot().InflightBytes; got != 300_000 {
			t.Errorf("%s token: %d bytes reserved, want 300000: no bypass", name, got)
		}
		s.finish()
	}

	child := r.open()
	child.send(rh(early, false, "content-length", "700000", "x-headgate-parent", token))
	child.send(chunks(bytesOf(700_000), 700_000)...)
	child.refused(503, "fanout_skipped") // costs more than is free, and never waits
	child = r.open()
	child.send(rh(early, false, "content-length", "10", "x-headgate-parent", token), rb("0123456789", true))
	fields := child.wants("RH", "RB")[0].GetDynamicMetadata().GetFields()["headgate"].GetStructValue().GetFields()
	if got := fields["lane"].GetStringValue(); got != parent.Lane {
		t.Errorf("a child is reported in lane %q, want its parent's, %q", got, parent.Lane)
	}
	if s := r.bytes.Snapshot(); s.InflightBytes != 0 {
		t.Errorf("%d bytes reserved by a child, want 0", s.InflightBytes)
	}
	tooLarge := r.open()
	tooLarge.send(rh(early, false, "content-length", "99999999999", "x-headgate-parent", token))
	tooLarge.refused(413, "payload_too_large")
	child.finish()
	gateway.finish()

	deepest := r.open()
	deepest.send(rh(early, true, "x-headgate-parent", r.parents.Issue(adaptive.Parent{Lane: "a", Cluster: "chat", Depth: 3})))
	got := deepest.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
	if len(got.GetSetHeaders()) != 0 || len(got.GetRemoveHeaders()) != 1 || got.GetRemoveHeaders()[0] != "x-headgate-parent" {
		t.Errorf("at the greatest depth: %v, want the token removed and none set", got)
	}
	deepest.finish()
}

// TestRefusalsLeakNothing: a client that never closes its side costs nothing after its refusal.
func TestRefusalsLeakNothing(t *testing.T) {
	r := newRig(t, nil)
	for range 2000 {
		s := r.open()
		s.send(rh(early, false, "content-length", "2000000"))
		s.refused(413, "payload_too_large")
	}
	r.settled()
}

// TestGrantAndDeadlineCollide: the queue's deadline is the moment capacity comes free; each exchange is decided once.
func TestGrantAndDeadlineCollide(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		enforce(8)(c)
		any := c.Clusters[config.AnyCluster]
		any.Lanes.MaxWait = 50 * time.Millisecond
		any.Lanes.MaxQueueCount, any.Lanes.MaxQueueCost = 10_000, 100_000
		c.Clusters[config.AnyCluster] = any
	})
	var all sync.WaitGroup
	for range 300 {
		all.Go(func() {
			s := r.open()
			s.send(rh(early, true))
			a, err := s.Recv()
			if err != nil {
				t.Errorf("no decision: %v", err)
				return
			}
			if kind(a) == "RH" {
				time.Sleep(50 * time.Millisecond)
				_ = s.CloseSend()
			}
			if b, err := s.Recv(); err == nil {
				t.Errorf("a second answer: %v", b)
			}
		})
	}
	all.Wait()
	admitted, late := r.seen.count("admitted"), r.seen.count("admission_deadline")
	if admitted+late != 300 || admitted == 0 {
		t.Errorf("%d admitted and %d past the deadline, want 300 together and some admitted", admitted, late)
	}
}

// TestIdentityEdges: header values of any kind are a tenant or none, and are never shown.
func TestIdentityEdges(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		enforce(1000)(c)
		any := c.Clusters[config.AnyCluster]
		any.Lanes.VirtualLanes = true
		c.Clusters[config.AnyCluster] = any
	})
	lanes := map[string]string{}
	for name, headers := range map[string][]string{
		"absent": nil, "empty": {"x-tenant-id", ""}, "blank": {"x-tenant-id", "  "}, "plain": {"x-tenant-id", "a"},
		"padded": {"x-tenant-id", " a "}, "twice": {"x-tenant-id", "a", "x-tenant-id", "b"}, "not UTF-8": {"x-tenant-id", "\xff\xfe"},
		"8 KiB long": {"x-tenant-id", bytesOf(8 << 10)}, "a list": {"x-tenant-id", "a,b"},
	} {
		s := r.open()
		s.send(rh(early, true, headers...))
		lanes[name] = s.wants("RH")[0].GetDynamicMetadata().GetFields()["headgate"].GetStructValue().GetFields()["lane"].GetStringValue()
		s.finish()
	}
	for _, name := range []string{"absent", "empty", "blank"} {
		if lanes[name] != "_default" {
			t.Errorf("%s: lane %q, want _default", name, lanes[name])
		}
	}
	for _, name := range []string{"padded", "twice"} {
		if lanes[name] != lanes["plain"] {
			t.Errorf("%s: lane %q, want that of the first value, %q", name, lanes[name], lanes["plain"])
		}
	}
	for name, lane := range lanes {
		if lane != "_default" && (len(lane) != len("lane_")+16 || !strings.HasPrefix(lane, "lane_")) {
			t.Errorf("%s: lane %q, want lane_ and 16 hex digits", name, lane)
		}
	}
}

// TestParentTokensInEveryMode: whichever message the decision is taken on, what is forwarded has a new token, and none where
// requests are nested as deeply as allowed, not even the one that came.
func TestParentTokensInEveryMode(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		a := c.Clusters[config.AnyCluster]
		a.Fanout.IssueParent = true
		c.Clusters[config.AnyCluster] = a
	})
	deepest := r.parents.Issue(adaptive.Parent{Lane: "l", Cluster: "x", Depth: 3})
	modes := map[string]*extprocv3.ProtocolConfiguration{"early": early, "nothing announced": nil}
	for number, name := range modev3.ProcessingMode_BodySendMode_name {
		if name != "GRPC" {
			modes[name] = announce(modev3.ProcessingMode_BodySendMode(number))
		}
	}
	for name, mode := range modes {
		for _, came := range []string{"", deepest} {
			var headers []string
			if came != "" {
				headers = []string{headerParent, came}
			}
			s := r.open()
			s.send(rh(mode, false, headers...))
			if name != "NONE" {
				s.send(rb("{}", true))
			}
			m := s.wants("RH")[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
			token := ""
			for _, h := range m.GetSetHeaders() {
				if h.GetHeader().GetKey() == headerParent {
					token = string(h.GetHeader().GetRawValue())
				}
			}
			if _, err := r.parents.Verify(token); (err == nil) != (came == "") {
				t.Errorf("%s, nested as deeply as allowed: %t: forwarded with the token %q (%v)", name, came != "", token, err)
			}
			if removed := slices.Contains(m.GetRemoveHeaders(), headerParent); removed != (came != "") {
				t.Errorf("%s, nested as deeply as allowed: %t: the token that came is removed: %t", name, came != "", removed)
			}
			s.cancel()
		}
	}
}
