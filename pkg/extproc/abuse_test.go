package extproc

import (
	"fmt"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

func inCluster(q *extprocv3.ProcessingRequest, cluster string) *extprocv3.ProcessingRequest {
	q.Attributes["envoy.filters.http.ext_proc"].Fields["xds.cluster_name"] = structpb.NewStringValue(cluster)
	return q
}

// TestClusterNamesAreBounded: names that somebody makes up push no configured cluster out, with its lease rule, and each
// that is too many, too long or not UTF-8 is counted as _other.
func TestClusterNamesAreBounded(t *testing.T) {
	r := newRig(t, leased(lease.ModeRequired, nil))
	for i := range maxClusters + 1 {
		s := r.open()
		s.send(inCluster(rh(early, true, ":method", "GET"), fmt.Sprint("made-up-", i)))
		s.wants("RH")
		s.finish()
	}
	s := r.open()
	s.send(rh(early, true, ":method", "GET"))
	s.refused(400, "LEASE_CONTEXT_REQUIRED")
	if n := len(r.lanes.Snapshot()); n > maxClusters+1 {
		t.Errorf("%d controllers, want at most %d", n, maxClusters+1)
	}
	for _, name := range []string{bytesOf(256), "a\xff"} {
		if got := r.server.clusterName(r.server.policy.Load(), name); got != clusterOther {
			t.Errorf("%.10q…: known as %.10q, want %s", name, got, clusterOther)
		}
	}
}

// TestProbeIsBounded: a probe of unknown clusters makes none known, and one of countless targets costs next to nothing.
func TestProbeIsBounded(t *testing.T) {
	r := newRig(t, nil)
	h := r.server.ProbeHandler()
	token := r.parents.Issue(adaptive.Parent{Lane: "l", Cluster: "x", Depth: 1})
	ask := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/admission/probe", strings.NewReader(body)))
		return w
	}
	if w := ask(fmt.Sprintf(`{"parent":%q,"targets":[{"cluster":"made-up"}]}`, token)); w.Code != 200 || !strings.Contains(w.Body.String(), "admit") {
		t.Errorf("an unknown cluster: %d %s, want 200 admit", w.Code, w.Body)
	}
	if n := len(r.lanes.Snapshot()); n != 0 {
		t.Errorf("%d controllers after a probe of an unknown cluster, want none", n)
	}
	for name, body := range map[string]string{
		"too many targets":  `{"parent":"x","targets":[` + strings.Repeat(`{"cluster":"a"},`, 256) + `{"cluster":"a"}]}`,
		"countless targets": `{"parent":"x","targets":[` + strings.Repeat("{},", 80_000) + `{}]}`,
		"no targets":        `{"parent":"x","targets":[]}`,
		"null":              `{"parent":"x","targets":null}`,
		"no list":           `{"parent":"x","targets":{}}`,
		"a negative number": `{"parent":"x","targets":[{"cluster":"a","bytes":-1}]}`,
		"no cluster":        `{"parent":"x","targets":[{}]}`,
		"an unknown field":  `{"parent":"x","targets":[{"cluster":"a","colour":"red"}]}`,
		"something behind":  `{"parent":"x","targets":[{"cluster":"a"}]} {}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := ask(body)
		runtime.ReadMemStats(&after)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "invalid_probe") {
			t.Errorf("%s: %d %s, want 400 invalid_probe", name, w.Code, w.Body)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*mib {
			t.Errorf("%s: %d bytes allocated for %d bytes of a caller without a token, want at most 4 MiB", name, n, len(body))
		}
	}
	if w := ask(strings.Repeat(" ", maxProbeBody+1)); w.Code != 413 {
		t.Errorf("a probe that is too large: %d, want 413", w.Code)
	}
}

// TestDuplexKeepsOneChunk: what Envoy has given away while an exchange waits stays in gRPC's flow control.
func TestDuplexKeepsOneChunk(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		enforce(8)(c)
		c.Bytes.HardMaxBody = 50 * mib
	})
	holder := r.open()
	holder.send(rh(early, true))
	holder.wants("RH")
	s := r.open()
	s.send(rh(announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED), false, ":method", "POST", "content-type", "text/plain"))
	s.send(rb("x", false)) // no JSON: all the evidence there will be
	sent := make(chan int, 1)
	go func() {
		n := 0
		for n < 160 && s.Send(rb(bytesOf(64<<10), false)) == nil { // 10 MiB
			n++
		}
		sent <- n
	}()
	select {
	case n := <-sent:
		t.Errorf("%d chunks of 64 KiB were taken while the lane was waited for, want flow control to stop them", n)
	case <-time.After(300 * time.Millisecond):
	}
	s.cancel()
	holder.finish()
}

// TestDuplexResponseIsEchoedToItsEnd: the stream does not end while Envoy relies on chunks that it has given away.
func TestDuplexResponseIsEchoedToItsEnd(t *testing.T) {
	r := newRig(t, lanesOff)
	s := r.open()
	s.send(rh(&extprocv3.ProtocolConfiguration{
		RequestBodyMode: modev3.ProcessingMode_STREAMED, ResponseBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
		SendBodyWithoutWaitingForHeaderResponse: true,
	}, false), rb("{}", true))
	s.wants("RH", "RB")
	s.send(sh("200", false), sb("hello ", false), sb("world", true))
	s.wants("SH")
	got := ""
	for _, a := range s.wants("SB", "SB") {
		got += string(a.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	if got != "hello world" {
		t.Errorf("echoed %q, want hello world", got)
	}
	s.finish()
}

// TestUploadClock: what counts as a stalled upload, and what does not.
func TestUploadClock(t *testing.T) {
	const timeout = 300 * time.Millisecond
	short := func(edit func(*config.Config)) *rig {
		return newRig(t, func(c *config.Config) {
			c.Bytes.UploadTimeout, c.Decision.UploadIdle = timeout, 20*time.Millisecond
			if edit != nil {
				edit(c)
			}
		})
	}
	t.Run("empty chunks are no progress", func(t *testing.T) {
		s := short(nil).open()
		s.send(rh(early, false, "content-length", "524288"))
		s.wants("RH")
		for range 3 {
			s.send(rb("", false))
			s.wants("RB")
			time.Sleep(50 * time.Millisecond)
		}
		s.refused(408, "upload_timeout")
	})
	// 500 B/s are 150 B in the time-out.
	trickle := func(t *testing.T, s *stream, bytes int, every time.Duration, n int) (sent int) {
		t.Helper()
		for sent < n && s.Send(rb(bytesOf(bytes), false)) == nil {
			sent++
			time.Sleep(every)
		}
		return sent
	}
	t.Run("a trickle is no progress", func(t *testing.T) {
		r := short(nil)
		s := r.open()
		s.send(rh(early, false, "content-length", "524288"))
		began := time.Now()
		if sent := trickle(t, s, 1, 30*time.Millisecond, 200); sent == 200 {
			t.Fatalf("not refused after %d bytes in %v, want it after %v", sent, time.Since(began), timeout)
		}
		a := s.next()
		for kind(a) != "immediate" {
			a = s.next()
		}
		if code := a.GetImmediateResponse().GetStatus().GetCode(); code != 408 {
			t.Errorf("refused with %d, want 408", code)
		}
		r.settled()
	})
	t.Run("a slow upload on pace goes on", func(t *testing.T) {
		s := short(nil).open()
		s.send(rh(early, false, "content-length", "524288"))
		if sent := trickle(t, s, 1000, 30*time.Millisecond, 30); sent != 30 {
			t.Errorf("refused after %d of 30 chunks in three time-outs", sent)
		}
	})
	t.Run("small chunks add up", func(t *testing.T) {
		s := short(func(c *config.Config) { c.Bytes.UploadTimeout = time.Second }).open() // 500 B in it
		s.send(rh(early, false, "content-length", "524288"))
		if sent := trickle(t, s, 60, 30*time.Millisecond, 80); sent != 80 {
			t.Errorf("refused after %d of 80 chunks in more than two time-outs", sent)
		}
	})
	t.Run("a fast start excuses no trickle", func(t *testing.T) {
		s := short(nil).open()
		s.send(rh(early, false, "content-length", "524288"), rb(bytesOf(100_000), false))
		if sent := trickle(t, s, 1, 30*time.Millisecond, 200); sent == 200 {
			t.Error("not refused after 200 bytes in 6 s")
		}
	})
	t.Run("a pause before anything is held is nobody's business", func(t *testing.T) {
		s := short(func(c *config.Config) { c.Bytes.LargeBody = 1000 }).open()
		s.send(rh(early, false), rb(bytesOf(950), false))
		time.Sleep(2 * timeout)
		if sent := trickle(t, s, 100, 30*time.Millisecond, 15); sent != 15 {
			t.Errorf("refused after %d of 15 chunks", sent)
		}
	})
	t.Run("a trickle is enough without a least rate", func(t *testing.T) {
		s := short(func(c *config.Config) { c.Bytes.UploadMinRate = 0 }).open()
		s.send(rh(early, false, "content-length", "524288"))
		if sent := trickle(t, s, 1, 30*time.Millisecond, 30); sent != 30 {
			t.Errorf("refused after %d of 30 bytes in three time-outs", sent)
		}
	})
	t.Run("a gRPC stream may trickle", func(t *testing.T) {
		s := short(nil).open()
		s.send(rh(early, false, ":method", "POST", "content-type", "application/grpc", "content-length", "524288"))
		if sent := trickle(t, s, 1, 30*time.Millisecond, 30); sent != 30 {
			t.Errorf("refused after %d of 30 bytes in three time-outs", sent)
		}
	})
	t.Run("a buffering Envoy is silent", func(t *testing.T) {
		r := short(nil)
		s := r.open()
		s.send(rh(announce(modev3.ProcessingMode_BUFFERED_PARTIAL), false))
		s.wants("RH")
		s.send(rb(`"`+bytesOf(64<<10), false))
		s.wants("RB")
		time.Sleep(2 * timeout)
		s.send(sh("200", true))
		s.wants("SH")
		s.finish()
	})
	t.Run("lanes in shadow refuse nothing", func(t *testing.T) {
		s := short(nil).open()
		s.send(rh(early, false), rb("1", false))
		s.wants("RH", "RB")
		time.Sleep(2 * timeout)
		s.send(rb("2", true))
		s.wants("RB")
		s.finish()
	})
	t.Run("a place in an enforced lane is given up", func(t *testing.T) {
		s := short(enforce(100)).open()
		s.send(rh(early, false), rb("1", false))
		s.wants("RH", "RB")
		s.refused(408, "upload_timeout")
	})
	t.Run("after the response began the bytes are given up", func(t *testing.T) {
		r := short(func(c *config.Config) { c.Bytes.ReleaseAt = budget.ReleaseAtResponseEnd })
		s := r.open()
		s.send(rh(early, false, "content-length", "1000000"), rb("x", false))
		s.wants("RH", "RB")
		s.send(sh("200", false))
		s.wants("SH")
		if !eventually(func() bool { return r.bytes.Snapshot().InflightBytes == 0 }) {
			t.Errorf("%d bytes are held for an upload that sends nothing, want 0", r.bytes.Snapshot().InflightBytes)
		}
		s.finish()
	})
}

// TestSlowUploadMayStillWait: without early bodies the time a client takes for its upload is no wait of ours.
func TestSlowUploadMayStillWait(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		c.Decision.MaxWait = 300 * time.Millisecond
		c.Bytes.HardMaxBody = 8 * mib
	})
	s := r.open()
	s.send(rh(announce(modev3.ProcessingMode_STREAMED), false))
	s.wants("RH")
	s.send(rb(`"`+bytesOf(100<<10), false))
	s.wants("RB")
	time.Sleep(400 * time.Millisecond)
	hold, _, _ := r.bytes.Acquire(budget.Request{Bytes: 4 * mib})
	time.AfterFunc(50*time.Millisecond, hold.Release)
	s.send(rb(bytesOf(256<<10)+`"`, true))
	s.wants("RB")
	s.finish()
}

// TestShrunkBudgetTakesNothingBack: a body whose bytes were reserved goes on.
func TestShrunkBudgetTakesNothingBack(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.HardMaxBody = 8 * mib })
	s := r.open()
	s.send(rh(early, false, "content-length", fmt.Sprint(2*mib)), rb(bytesOf(300<<10), false))
	s.wants("RH", "RB")
	r.bytes.SetBudget(memory.Budget{Bytes: mib})
	s.send(rb(bytesOf(300<<10), false))
	s.wants("RB")
	s.finish()
}

// TestWhatArrivesDuringTheWaitIsPriced: the lane is paid for all that has come when the exchange is let in.
func TestWhatArrivesDuringTheWaitIsPriced(t *testing.T) {
	r := newRig(t, enforce(8))
	holder := r.open()
	holder.send(rh(early, true))
	holder.wants("RH")
	s := r.open()
	s.send(rh(early, false, ":method", "POST", "content-type", "text/plain"))
	s.send(rb("x", false)) // no JSON: its lane is asked for a cost of 6
	s.send(chunks(bytesOf(512<<10), 64<<10)...)
	if !eventually(func() bool { return r.bytes.Snapshot().QueuedBytes == 512<<10+1 }) {
		t.Fatalf("%d bytes are queued, want all that has arrived", r.bytes.Snapshot().QueuedBytes)
	}
	if got := r.bytes.Snapshot().InflightBytes; got != 0 {
		t.Errorf("%d bytes are reserved while the lane is waited for, want 0", got)
	}
	holder.finish()
	s.wants("RH", "RB")
	want := min(adaptive.Cost(adaptive.Features{Bytes: 512<<10 + 1}), 8) // all of the limit
	if !eventually(func() bool { return r.lanes.Snapshot()["chat"].ActiveCost == want }) {
		t.Errorf("512 KiB run at a cost of %d, want %d", r.lanes.Snapshot()["chat"].ActiveCost, want)
	}
	s.cancel()
}

// TestFlowControlBeforeTheHeaders: a first message without a request is not taken for the headers.
func TestFlowControlBeforeTheHeaders(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	s.send(&extprocv3.ProcessingRequest{}, rh(early, false, "content-length", "9223372036854775807"))
	s.refused(413, "payload_too_large")
}

// TestCallersOfTheLeaseAPI: the sources hold in their order, and headers only where nobody but Envoy can send them.
func TestCallersOfTheLeaseAPI(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 9004} }
	for _, c := range []struct {
		name        string
		bound       net.Addr
		key, header string
		want        string
		refusal     lease.Reason
	}{
		{"the key comes first", tcp("127.0.0.1"), "key-a", "team-b", "team-a", ""},
		{"a wrong key ends the search", tcp("127.0.0.1"), "wrong", "team-b", "", lease.APIKeyInvalid},
		{"a header on loopback", tcp("127.0.0.1"), "", "team-b", "team-b", ""},
		{"a header on a socket", &net.UnixAddr{Net: "unix", Name: "/run/api.sock"}, "", "team-b", "team-b", ""},
		{"a header from anywhere", tcp("0.0.0.0"), "", "team-b", "", lease.AuthenticationRequired},
		{"a header over IPv6 loopback", tcp("::1"), "", "team-b", "team-b", ""},
		{"a header over any address of IPv6", tcp("::"), "", "team-b", "", lease.AuthenticationRequired},
		{"a header on an address of the network", tcp("10.1.2.3"), "", "team-b", "", lease.AuthenticationRequired},
		{"a header where nothing is known to listen", nil, "", "team-b", "", lease.AuthenticationRequired},
		{"nothing", tcp("127.0.0.1"), "", "", "", lease.AuthenticationRequired},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, leased(lease.ModeManaged, func(cfg *config.Config) {
				cfg.Listen.API = "127.0.0.1:9004" // which is not what counts
				cfg.PrincipalSources = []config.Source{{APIKey: true}, {Header: "x-user"}}
			}))
			if c.bound != nil {
				r.server.APIListensOn(c.bound)
			}
			r.server.Configure(r.config)
			q := httptest.NewRequest("POST", "/v1/session-leases", nil)
			if c.key != "" {
				q.Header.Set("Authorization", "Bearer "+c.key)
			}
			q.Header.Set("X-User", c.header)
			id, refusal := r.server.IdentifyRequest(q)
			var got lease.Reason
			if refusal != nil {
				got = refusal.Reason
			}
			if id.Principal != c.want || got != c.refusal {
				t.Errorf("%q, refused %q; want %q, %q", id.Principal, got, c.want, c.refusal)
			}
		})
	}
}
