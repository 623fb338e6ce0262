package extproc

import (
	"strings"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

func TestEveryPhaseGetsAReplyOfItsOwnType(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		name     string
		protocol *extprocv3.ProtocolConfiguration
	}{
		{"nothing announced", nil},
		{"streamed", announce(modev3.ProcessingMode_STREAMED)},
		{"streamed, early", early},
	} {
		s := r.open()
		s.send(rh(c.protocol, false), rb("a", false), rt(), sh("200", false), sb("b", false), st())
		s.wants("RH", "RB", "RT", "SH", "SB", "ST")
		s.finish()
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

// TestWrongPhases: messages that no rule expects get one reply of their own type each, and nothing hangs.
func TestWrongPhases(t *testing.T) {
	r := newRig(t, nil)
	noHeaders := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}}
	for _, c := range []struct {
		name string
		send []*extprocv3.ProcessingRequest
		want []string
	}{
		{"a body first", []*extprocv3.ProcessingRequest{rb("x", true)}, []string{"RB"}},
		{"a header map that is missing", []*extprocv3.ProcessingRequest{noHeaders, rb("", true)}, []string{"RH", "RB"}},
		{"a body after the headers ended the stream", []*extprocv3.ProcessingRequest{rh(nil, true), rb("", true)}, []string{"RH", "RB"}},
		{"response headers before any body", []*extprocv3.ProcessingRequest{rh(nil, false), sh("200", false)}, []string{"RH", "SH"}},
		{"response headers before the decision", []*extprocv3.ProcessingRequest{rh(early, false), sh("200", false)}, []string{"RH", "SH"}},
		{"a body without an end", []*extprocv3.ProcessingRequest{rh(nil, false), rb("a", false), sh("200", false)}, []string{"RH", "RB", "SH"}},
		{"a body ended by trailers", []*extprocv3.ProcessingRequest{rh(nil, false), rb("a", false), rt(), sh("200", false)}, []string{"RH", "RB", "RT", "SH"}},
		{"response first", []*extprocv3.ProcessingRequest{sh("200", false), sb("x", true)}, []string{"SH", "SB"}},
		{"headers twice", []*extprocv3.ProcessingRequest{rh(nil, true), rh(nil, true)}, []string{"RH", "RH"}},
	} {
		s := r.open()
		s.send(c.send...)
		s.wants(c.want...)
		s.finish()
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

// TestResponseWhoseHeadersAreNotSent: with response_header_mode SKIP the response's body is the first of it. Its headers
// have passed by then, so that no gate refuses what arrives after it.
func TestResponseWhoseHeadersAreNotSent(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		any := c.Clusters[config.AnyCluster]
		any.Lanes.Mode = adaptive.Enforce
		any.Lanes.MinLimit, any.Lanes.InitialLimit, any.Lanes.MaxLimit = 1, 1, 4
		c.Clusters[config.AnyCluster] = any
	})
	s := r.open()
	s.send(rh(nil, false), sb("an answer", false), rb(bytesOf(100_000), true))
	s.wants("RH", "SB", "RB")
	s.finish()
	if n := r.seen.count(reasonAnsweredEarlier); n != 1 {
		t.Errorf("answered_earlier is counted %d times, want once: the upstream answered before the decision", n)
	}
}

func TestFlowControlMessageGetsNoReply(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	s.send(rh(nil, false))
	s.wants("RH")
	s.send(&extprocv3.ProcessingRequest{}, rb("{}", true))
	s.wants("RB")
	s.send(sh("200", true))
	s.wants("SH")
	s.finish()
}

// TestEmptyChunksCostNothing: chained filters make floods of empty chunks.
func TestEmptyChunksCostNothing(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	const n = 10_000
	go func() {
		_ = s.Send(rh(early, false))
		for range n {
			_ = s.Send(rb("", false))
		}
		_ = s.Send(rb("{}", true))
	}()
	s.wants("RH")
	for range n + 1 {
		s.wants("RB")
	}
	s.finish()
}

// TestEvidence: when the decision is taken in the early mode.
func TestEvidence(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Decision.UploadIdle = 2 * time.Second })
	const soon, idle = time.Second, 2 * time.Second
	for _, c := range []struct {
		name   string
		send   []*extprocv3.ProcessingRequest
		idles  bool
		answer int
	}{
		{"no body", []*extprocv3.ProcessingRequest{rh(early, true)}, false, 1},
		{"content-length 0 without end of stream", []*extprocv3.ProcessingRequest{rh(early, false, "content-length", "0")}, false, 1},
		{"OPTIONS without end of stream", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "OPTIONS")}, false, 1},
		{"no JSON, whatever its type says", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "POST", "content-type", "application/json"), rb("\x89PNG", false)}, false, 2},
		{"JSON, whatever its type says", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "POST", "content-type", "image/png"), rb("{", false)}, true, 2},
		{"all that was declared", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "POST", "content-length", "2"), rb("{ ", false)}, false, 2},
		{"not JSON by its first byte", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "POST"), rb("x", false)}, false, 2},
		{"compressed", []*extprocv3.ProcessingRequest{rh(early, false, "content-encoding", "gzip"), rb("\x1f\x8b", false)}, false, 2},
		{"gRPC", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "POST", "content-type", "application/grpc+proto")}, false, 1},
		{"WebSocket", []*extprocv3.ProcessingRequest{rh(early, false, ":method", "GET", "connection", "upgrade", "upgrade", "websocket")}, false, 1},
		{"another upgrade with a body", []*extprocv3.ProcessingRequest{rh(early, false, "upgrade", "foo")}, false, 1},
		{"the whole body", []*extprocv3.ProcessingRequest{rh(early, false), rb(`{"messages":[]}`, true)}, false, 2},
		{"the document is complete, the stream is not", []*extprocv3.ProcessingRequest{rh(early, false), rb(`{"messages":[]}`, false)}, false, 2},
		{"the window is full", append([]*extprocv3.ProcessingRequest{rh(early, false)}, rb(`{"a":"`+bytesOf(256<<10), false)), false, 2},
		{"the upload pauses", []*extprocv3.ProcessingRequest{rh(early, false), rb(`{"messages":[`, false)}, true, 2},
	} {
		s := r.open()
		began := time.Now()
		s.send(c.send...)
		s.wants("RH")
		took := time.Since(began)
		if c.idles != (took >= idle) || (!c.idles && took > soon) {
			t.Errorf("%s: decided after %v; waits for the pause of %v: %v", c.name, took, idle, c.idles)
		}
		for range c.answer - 1 {
			s.wants("RB")
		}
		s.finish()
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if r.seen.idled != 2 {
		t.Errorf("%d decisions counted as idled, want 2", r.seen.idled)
	}
}

// TestNothingIsForwardedBeforeTheDecision: in the early mode the answer to the headers is withheld.
func TestNothingIsForwardedBeforeTheDecision(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Decision.UploadIdle = 10 * time.Second })
	s := r.open()
	s.send(rh(early, false), rb(`{"messages":[`, false))
	s.silent(100 * time.Millisecond)
	s.cancel()
}

// TestLastChunkIsWithheldWithoutEarlyBodies: the decision is taken at the end of the body.
func TestLastChunkIsWithheldWithoutEarlyBodies(t *testing.T) {
	for _, m := range []modev3.ProcessingMode_BodySendMode{
		modev3.ProcessingMode_STREAMED, modev3.ProcessingMode_FULL_DUPLEX_STREAMED, modev3.ProcessingMode_BUFFERED,
		modev3.ProcessingMode_BUFFERED_PARTIAL,
	} {
		t.Run(m.String(), func(t *testing.T) {
			r := newRig(t, enforce(7))
			holder := r.open()
			holder.send(rh(early, true))
			holder.wants("RH")

			s := r.open()
			s.send(rh(announce(m), false))
			s.wants("RH")
			if m == modev3.ProcessingMode_STREAMED || m == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
				s.send(rb(`{"messages":`, false))
				s.wants("RB")
				s.send(rb(`[]}`, true))
			} else {
				s.send(rb(`{"messages":[]}`, true))
			}
			if !eventually(func() bool { return r.lanes.Controller("chat").Snapshot().QueuedCount == 1 }) {
				t.Fatal("the exchange does not wait for its lane, want it to on the last chunk")
			}
			holder.finish()
			s.wants("RB")
			s.finish()
		})
	}
}

// enforce gives every cluster a fixed limit.
func enforce(limit int) func(*config.Config) {
	return func(c *config.Config) {
		any := c.Clusters[config.AnyCluster]
		any.Lanes.Mode = adaptive.Enforce
		any.Lanes.MinLimit, any.Lanes.InitialLimit, any.Lanes.MaxLimit = limit, limit, max(limit, 100)
		any.Lanes.MaxIncreasePerWindow, any.Lanes.MaxShare = 1, 1
		any.Lanes.Window = time.Hour
		c.Clusters[config.AnyCluster] = any
	}
}

func TestFullDuplexEchoesEveryByte(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	body := `{"a":"` + bytesOf(200_000) + `"}`
	s.send(rh(&extprocv3.ProtocolConfiguration{
		RequestBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
	}, false))
	s.wants("RH")
	s.send(chunks(body, 90_000)...)
	var got strings.Builder
	for {
		piece := s.wants("RB")[0].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got.Write(piece.GetBody())
		if len(piece.GetBody()) > 64<<10 {
			t.Errorf("piece of %d bytes, want at most 65536", len(piece.GetBody()))
		}
		if piece.GetEndOfStream() {
			break
		}
	}
	if got.String() != body {
		t.Errorf("echoed %d bytes, same %v; want the same %d", got.Len(), got.String() == body, len(body))
	}
	s.send(sh("200", false), sb("answer", true))
	s.wants("SH")
	if e := s.wants("SB")[0].GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(e.GetBody()) != "answer" || !e.GetEndOfStream() {
		t.Errorf("response echo %v, want the chunk and its end", e)
	}
	s.finish()
}

func TestWithoutBodiesTheDeclaredLengthDecides(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	s.send(rh(announce(modev3.ProcessingMode_NONE), false, "content-length", "2000000"))
	s.refused(413, "payload_too_large")

	s = r.open()
	s.send(rh(announce(modev3.ProcessingMode_NONE), false, "content-length", "500000"))
	s.wants("RH")
	if b := r.bytes.Snapshot().InflightBytes; b != 500_000 {
		t.Errorf("%d bytes reserved, want the declared 500000", b)
	}
	s.finish()
}

// TestStreamEnds: EOF and cancellation are both normal ends, and free everything.
func TestStreamEnds(t *testing.T) {
	r := newRig(t, nil)
	for range 200 {
		s := r.open()
		s.send(rh(early, false), rb("{}", true))
		s.wants("RH", "RB")
		s.send(sh("200", false))
		s.wants("SH")
		s.cancel()
	}
	for range 200 {
		s := r.open()
		s.send(rh(early, false, "content-length", "300000"))
		s.cancel()
	}
	s := r.open()
	s.cancel()
	r.settled()
}

// TestPanicFreesEverything: a fault in one exchange ends that exchange alone.
func TestPanicFreesEverything(t *testing.T) {
	r := newRig(t, nil)
	held := r.server.pressure
	r.server.pressure = nil // the first gate faults
	s := r.open()
	s.send(rh(early, true))
	if _, err := s.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("error %v, want INTERNAL", err)
	}
	r.settled()
	r.server.pressure = held
	s = r.open()
	s.send(rh(early, true))
	s.wants("RH")
	s.finish()
}

// TestObservabilityModeSendsNothing: Envoy ignores answers, so none is sent and nothing is held.
func TestObservabilityModeSendsNothing(t *testing.T) {
	r := newRig(t, enforce(7))
	holder := r.open()
	holder.send(rh(early, true))
	holder.wants("RH")
	s := r.open()
	first := rh(early, false, "content-length", "300000")
	first.ObservabilityMode = true
	s.send(first, rb("{}", true))
	s.silent(200 * time.Millisecond)
	if b := r.bytes.Snapshot().InflightBytes; b != 0 {
		t.Errorf("%d bytes reserved, want 0", b)
	}
	r.seen.mu.Lock()
	if n := r.seen.wouldReject["admission_queue_full"]; n != 1 {
		t.Errorf("counted as would-reject: %v, want admission_queue_full once", r.seen.wouldReject)
	}
	r.seen.mu.Unlock()
	s.cancel()
	holder.finish()
}

// TestLetGo: a shutting-down server ends the streams of decided exchanges with OK.
func TestLetGo(t *testing.T) {
	r := newRig(t, nil)
	streaming := r.open()
	streaming.send(rh(early, false), rb("{}", true))
	streaming.wants("RH", "RB")
	streaming.send(sh("200", false))
	streaming.wants("SH")

	uploading := r.open()
	uploading.send(rh(early, false), rb(`{"a":"`+bytesOf(256<<10), false))
	uploading.wants("RH", "RB")

	duplex := r.open()
	duplex.send(rh(announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED), false, ":method", "POST", "content-type", "text/plain"))
	duplex.wants("RH")

	r.server.LetGo()
	streaming.ended()
	uploading.ended()
	duplex.send(rb("a", false), rb("b", true)) // Envoy has given these away: they must come back
	duplex.wants("RB", "RB")
	duplex.ended()

	late := r.open()
	late.send(rh(early, true))
	late.wants("RH")
	late.ended()
}

// TestNothingGovernsIsLetGo: without lanes and with the body seen, Envoy carries on at no further cost.
func TestNothingGovernsIsLetGo(t *testing.T) {
	r := newRig(t, lanesOff)
	s := r.open()
	s.send(rh(early, true, ":method", "GET"))
	s.wants("RH")
	s.ended()

	s = r.open()
	s.send(rh(early, false), rb("{}", true))
	s.wants("RH", "RB")
	s.ended()
}

func lanesOff(c *config.Config) {
	any := c.Clusters[config.AnyCluster]
	any.Lanes.Mode = adaptive.Off
	c.Clusters[config.AnyCluster] = any
}

// TestRouteNamesItsPolicy: ExtProcPerRoute can name the entry of clusters through gRPC metadata.
func TestRouteNamesItsPolicy(t *testing.T) {
	r := newRig(t, nil)
	s := r.open(policyKey, "special")
	s.send(rh(early, true))
	got := s.wants("RH")[0]
	s.finish()
	if _, ok := r.lanes.Snapshot()["special"]; !ok {
		t.Errorf("clusters %v, want the one named by the route", r.lanes.Snapshot())
	}
	fields := got.GetDynamicMetadata().GetFields()["headgate"].GetStructValue().GetFields()
	for key, want := range map[string]*structpb.Value{
		"decision": structpb.NewStringValue("admitted"), "reason": structpb.NewStringValue("admitted"),
		"bytes": structpb.NewNumberValue(0), "cost": structpb.NewNumberValue(4), "lane": structpb.NewStringValue("_default"),
		"wait_ms": structpb.NewNumberValue(0),
	} {
		if fields[key].String() != want.String() {
			t.Errorf("metadata %s is %v, want %v", key, fields[key], want)
		}
	}
}
