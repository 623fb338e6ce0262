package wire

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// pieces cuts data into buffers of n bytes, as gRPC hands over a message that came in several frames.
func pieces(data []byte, n int) mem.BufferSlice {
	var s mem.BufferSlice
	for len(data) > n {
		s, data = append(s, mem.SliceBuffer(data[:n])), data[n:]
	}
	return append(s, mem.SliceBuffer(data))
}

func encode(t testing.TB, r *extprocv3.ProcessingRequest) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatalf("encode the request: %v", err)
	}
	return b
}

func structure(t testing.TB, m map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecodeHeaders(t *testing.T) {
	t.Parallel()
	data := encode(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			EndOfStream: true,
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":method", RawValue: []byte("POST")},
				{Key: "content-length", Value: "12"},
				{Key: "x-tenant-id", RawValue: []byte{0xff, 0xfe}},
				{Key: "x-tenant-id", RawValue: []byte("second")},
			}},
		}},
		Attributes: map[string]*structpb.Struct{
			"envoy.filters.http.ext_proc": structure(t, map[string]any{"xds.cluster_name": "chat", "n": 1.0}),
		},
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.filters.http.jwt_authn": structure(t, map[string]any{"payload": map[string]any{"sub": "alice"}}),
		}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: modev3.ProcessingMode_STREAMED, ResponseBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
			SendBodyWithoutWaitingForHeaderResponse: true,
		},
		ObservabilityMode: true,
	})
	for _, size := range []int{1, 7, len(data)} {
		var m Message
		if err := m.Decode(pieces(data, size)); err != nil {
			t.Fatalf("buffers of %d bytes: %v", size, err)
		}
		if m.Phase != RequestHeaders || !m.EndOfStream || !m.Observability {
			t.Errorf("buffers of %d bytes: phase %d, end %v, observability %v; want %d, true, true",
				size, m.Phase, m.EndOfStream, m.Observability, RequestHeaders)
		}
		if want := (Protocol{Known: true, RequestBody: BodyStreamed, ResponseBody: BodyFullDuplex, EarlyBody: true}); m.Protocol != want {
			t.Errorf("protocol %+v, want %+v", m.Protocol, want)
		}
		if v, n := m.Header("content-length"); string(v) != "12" || n != 1 {
			t.Errorf("content-length in value: %q × %d, want 12 × 1", v, n)
		}
		if v, n := m.Header("x-tenant-id"); !bytes.Equal(v, []byte{0xff, 0xfe}) || n != 2 {
			t.Errorf("first x-tenant-id, not UTF-8: %x × %d, want fffe × 2", v, n)
		}
		if v := m.Attribute("xds.cluster_name"); v != "chat" {
			t.Errorf("attribute %q, want chat", v)
		}
		if v := m.Metadata([]string{"envoy.filters.http.jwt_authn", "payload", "sub"}); v != "alice" {
			t.Errorf("metadata %q, want alice", v)
		}
		for _, path := range [][]string{nil, {"envoy.filters.http.jwt_authn"}, {"x", "y"}, {"envoy.filters.http.jwt_authn", "payload", "sub", "deeper"}} {
			if v := m.Metadata(path); v != "" {
				t.Errorf("metadata at %q: %q, want none", path, v)
			}
		}
	}
}

func TestDecodeBodyLendsTheBytesOnce(t *testing.T) {
	t.Parallel()
	body := []byte(strings.Repeat("0123456789", 5000))
	data := encode(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}},
	})
	for _, size := range []int{1, 1000, 16384, len(data)} {
		var m Message
		if err := m.Decode(pieces(data, size)); err != nil {
			t.Fatalf("buffers of %d bytes: %v", size, err)
		}
		var got []byte
		m.EachChunk(func(p []byte) { got = append(got, p...) })
		if m.Phase != RequestBody || !m.EndOfStream || m.BodyLen() != len(body) || !bytes.Equal(got, body) {
			t.Errorf("buffers of %d bytes: phase %d, end %v, length %d, same bytes %v; want %d, true, %d, true",
				size, m.Phase, m.EndOfStream, m.BodyLen(), bytes.Equal(got, body), RequestBody, len(body))
		}
		m.Free()
		m.Free()
	}
}

func TestDecodeEveryPhase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		request *extprocv3.ProcessingRequest
		want    Phase
	}{
		{"no request, flow control only", &extprocv3.ProcessingRequest{ClientWindowUpdate: &extprocv3.ProcessingRequest_ClientWindowUpdate{}}, None},
		{"request headers without a map", &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}}, RequestHeaders},
		{"request trailers", &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}, RequestTrailers},
		{"response headers", &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}}, ResponseHeaders},
		{"response body", &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{}}}, ResponseBody},
		{"response trailers", &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}, ResponseTrailers},
	} {
		var m Message
		if err := m.Decode(pieces(encode(t, c.request), 3)); err != nil || m.Phase != c.want {
			t.Errorf("%s: phase %d, error %v; want %d", c.name, m.Phase, err, c.want)
		}
	}
}

func TestDecodeBodyAllocatesNothing(t *testing.T) {
	data := pieces(encode(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: make([]byte, 100_000)}},
	}), 16384)
	var m Message
	if n := testing.AllocsPerRun(100, func() {
		if err := m.Decode(data); err != nil {
			t.Fatal(err)
		}
		m.Free()
	}); n != 0 {
		t.Errorf("a body of 100 000 bytes costs %v allocations, want 0", n)
	}
}

// TestRecycledMessagesSayNothing: nothing of what a client sent is left in the buffers that another exchange gets, and large ones
// are not used again.
func TestRecycledMessagesSayNothing(t *testing.T) {
	const secret = "vlo_secret"
	message := func(size int) mem.BufferSlice {
		return pieces(encode(t, &extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{
				Headers: []*corev3.HeaderValue{{Key: "x-owner", RawValue: []byte(strings.Repeat(secret, size))}}}}},
			Attributes: map[string]*structpb.Struct{"a": {Fields: map[string]*structpb.Value{"b": structpb.NewStringValue(secret)}}},
		}), 16384)
	}
	body := pieces(encode(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(secret), EndOfStream: true}},
	}), 4)
	var m Message
	for _, data := range []mem.BufferSlice{message(1), body} {
		if err := m.Decode(data); err != nil {
			t.Fatal(err)
		}
	}
	m.Recycle()
	for name, buffer := range map[string][]byte{"headers": m.headers, "attributes": m.attributes, "metadata": m.metadata} {
		if all := buffer[:cap(buffer)]; bytes.Contains(all, []byte(secret)) {
			t.Errorf("the %s still hold %q", name, all)
		}
	}
	for _, piece := range m.body[:cap(m.body)] {
		if piece != nil {
			t.Errorf("the body still holds %q", piece)
		}
	}
	if value, n := m.Header("x-owner"); n != 0 || m.Phase != None || m.EndOfStream || m.BodyLen() != 0 || cap(m.headers) == 0 {
		t.Errorf("phase %d, %q, %d bytes of body, room for %d bytes of headers; want none of the first message, and its room", m.Phase, value, m.BodyLen(), cap(m.headers))
	}
	if err := m.Decode(message(maxRecycledBytes)); err != nil {
		t.Fatal(err)
	}
	if m.Recycle(); cap(m.headers) != 0 {
		t.Errorf("%d bytes of headers stay, want none of so many", cap(m.headers))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, 1)
	f.Add([]byte{0x22, 0x05, 0x0a, 0x01, 'x', 0x10, 0x01}, 2)
	f.Add([]byte{0x12, 0x02, 0x18, 0x01, 0x5a, 0x04, 0x08, 0x01, 0x18, 0x01}, 3)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		var m Message
		err := m.Decode(pieces(data, max(1, size)))
		m.EachHeader(func(_, _ []byte) {})
		m.Attribute("xds.cluster_name")
		m.Metadata([]string{"a", "b", "c"})
		var want extprocv3.ProcessingRequest
		if proto.Unmarshal(data, &want) == nil && err != nil {
			t.Fatalf("valid for the generated types, but: %v", err)
		}
		m.Free()
	})
}
