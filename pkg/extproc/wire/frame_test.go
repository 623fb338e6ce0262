package wire

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

func decodeFrame(t *testing.T, f Frame) *extprocv3.ProcessingResponse {
	t.Helper()
	var r extprocv3.ProcessingResponse
	if err := proto.Unmarshal(f, &r); err != nil {
		t.Fatalf("frame % x: %v", []byte(f), err)
	}
	return &r
}

func TestContinueHasThePhasesOwnType(t *testing.T) {
	t.Parallel()
	for p, ok := range map[Phase]func(*extprocv3.ProcessingResponse) bool{
		RequestHeaders:   func(r *extprocv3.ProcessingResponse) bool { return r.GetRequestHeaders() != nil },
		RequestBody:      func(r *extprocv3.ProcessingResponse) bool { return r.GetRequestBody() != nil },
		RequestTrailers:  func(r *extprocv3.ProcessingResponse) bool { return r.GetRequestTrailers() != nil },
		ResponseHeaders:  func(r *extprocv3.ProcessingResponse) bool { return r.GetResponseHeaders() != nil },
		ResponseBody:     func(r *extprocv3.ProcessingResponse) bool { return r.GetResponseBody() != nil },
		ResponseTrailers: func(r *extprocv3.ProcessingResponse) bool { return r.GetResponseTrailers() != nil },
	} {
		if r := decodeFrame(t, Continue(p)); !ok(r) {
			t.Errorf("phase %d: %v, want a reply of its own type", p, r)
		}
	}
}

func TestHeadersMutation(t *testing.T) {
	t.Parallel()
	frame := Headers(RequestHeaders, Mutation{
		Set: []Header{{"x-omniroute-connection", "acct-1"}}, Remove: []string{"x-headgate-parent"}, ClearRouteCache: true,
	}).WithMetadata("headgate", []Value{{Key: "decision", Text: "admitted"}, {Key: "bytes", Number: 12}})
	r := decodeFrame(t, frame)
	common := r.GetRequestHeaders().GetResponse()
	set := common.GetHeaderMutation().GetSetHeaders()
	if len(set) != 1 || set[0].GetHeader().GetKey() != "x-omniroute-connection" || string(set[0].GetHeader().GetRawValue()) != "acct-1" ||
		set[0].GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
		t.Errorf("set headers %v, want x-omniroute-connection: acct-1 in raw_value, overwriting", set)
	}
	if got := common.GetHeaderMutation().GetRemoveHeaders(); len(got) != 1 || got[0] != "x-headgate-parent" {
		t.Errorf("removed %q, want x-headgate-parent", got)
	}
	if !common.GetClearRouteCache() {
		t.Error("the route cache is kept, want it cleared")
	}
	fields := r.GetDynamicMetadata().GetFields()["headgate"].GetStructValue().GetFields()
	if fields["decision"].GetStringValue() != "admitted" || fields["bytes"].GetNumberValue() != 12 {
		t.Errorf("metadata %v, want decision admitted, bytes 12", fields)
	}
}

func TestEchoCutsIntoPieces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		size, want int
	}{{"empty", 0, 1}, {"one byte", 1, 1}, {"exactly 64 KiB", 65536, 1}, {"64 KiB and one", 65537, 2}, {"1 MiB", 1 << 20, 16}} {
		body := bytes.Repeat([]byte("ab"), c.size/2+1)[:c.size]
		var m Message
		data := encode(t, &extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}},
		})
		if err := m.Decode(pieces(data, 10_000)); err != nil {
			t.Fatal(err)
		}
		var got []byte
		ends := 0
		frames := Echo(&m)
		for i, f := range frames {
			s := decodeFrame(t, f).GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			got = append(got, s.GetBody()...)
			if s.GetEndOfStream() {
				ends++
				if i != len(frames)-1 {
					t.Errorf("%s: end of stream in piece %d of %d", c.name, i+1, len(frames))
				}
			}
			if len(s.GetBody()) > 65536 {
				t.Errorf("%s: piece of %d bytes, want at most 65536", c.name, len(s.GetBody()))
			}
		}
		if len(frames) != c.want || ends != 1 || !bytes.Equal(got, body) {
			t.Errorf("%s: %d pieces, %d ends, same bytes %v; want %d, 1, true", c.name, len(frames), ends, bytes.Equal(got, body), c.want)
		}
	}
}

func TestImmediate(t *testing.T) {
	t.Parallel()
	frame, err := Immediate{Status: 413, GRPCStatus: 8, Headers: []Header{{"x-headgate-reason", "payload_too_large"}}, Body: []byte("{}"), Details: "headgate"}.Frame()
	if err != nil {
		t.Fatal(err)
	}
	got := decodeFrame(t, frame).GetImmediateResponse()
	h := got.GetHeaders().GetSetHeaders()
	if got.GetStatus().GetCode() != 413 || got.GetGrpcStatus().GetStatus() != 8 || string(got.GetBody()) != "{}" || len(h) != 1 ||
		string(h[0].GetHeader().GetRawValue()) != "payload_too_large" {
		t.Errorf("immediate response %v, want 413, grpc 8, one header in raw_value", got)
	}
}

func TestMetadataIsWrittenOnce(t *testing.T) {
	values := []Value{{Key: "decision", Text: "admitted"}, {Key: "bytes", Number: 12}, {Key: "lane", Text: "lane_0123456789abcdef"}}
	if n := testing.AllocsPerRun(100, func() { Continue(RequestHeaders).WithMetadata("headgate", values) }); n != 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}

// TestEchoCopiesOnce: a frame for each piece and the list of them, however the chunk came.
func TestEchoCopiesOnce(t *testing.T) {
	var m Message
	data := encode(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: make([]byte, 1<<20), EndOfStream: true}},
	})
	if err := m.Decode(pieces(data, 16<<10)); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() { Echo(&m) }); n > 18 { // and the scan of the chunks
		t.Errorf("%v allocations for 1 MiB, want at most 18", n)
	}
}

// TestContinuingAllocatesNothing: the frame that gRPC sends is the one of its phase, made once.
func TestContinuingAllocatesNothing(t *testing.T) {
	codec := NewCodec()
	for p := RequestHeaders; p <= ResponseTrailers; p++ {
		sent, err := codec.Marshal(Continue(p).Outgoing())
		if err != nil || !bytes.Equal(sent.Materialize(), Continue(p)) {
			t.Errorf("phase %d: sent % x (%v), want % x", p, sent.Materialize(), err, Continue(p))
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = codec.Marshal(Continue(p).Outgoing()) }); n != 0 {
			t.Errorf("phase %d: %v allocations, want 0", p, n)
		}
	}
	other := Continue(RequestHeaders).WithMetadata("headgate", []Value{{Key: "a", Text: "b"}})
	if sent, err := codec.Marshal(other.Outgoing()); err != nil || !bytes.Equal(sent.Materialize(), other) {
		t.Errorf("sent % x (%v), want % x", sent.Materialize(), err, other)
	}
	odd := Frame{7<<3 | 2, 0}
	if sent, err := codec.Marshal(odd.Outgoing()); err != nil || !bytes.Equal(sent.Materialize(), odd) {
		t.Errorf("an empty refusal: sent % x (%v), want % x", sent.Materialize(), err, odd)
	}
}
