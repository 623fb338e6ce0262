package stack

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// stub is a processor that does what the request's headers ask for, so that the Envoy configuration can be tested
// without the sidecar:
//
//	x-test-connection: acct-2    routes to that connection as a lease does
//	x-test-refuse: 1             refuses with the headers a refusal has, and one that must be filtered
type stub struct {
	extprocv3.UnimplementedExternalProcessorServer

	mu     sync.Mutex
	script func(extprocv3.ExternalProcessor_ProcessServer) error // replaces all of the above, when set
	routes []string                                              // route cluster of every exchange, in order
	open   int                                                   // exchanges now
}

// startProcessor serves a processor and returns its address.
func startProcessor(t *testing.T, p extprocv3.ExternalProcessorServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(server, p)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func (s *stub) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.routes...)
}

func (s *stub) active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *stub) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += n
}

func (s *stub) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	s.add(1)
	defer s.add(-1)
	if s.script != nil {
		return s.script(stream)
	}
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out := s.answer(in)
		if err := stream.Send(out); err != nil {
			return err
		}
		if out.GetImmediateResponse() != nil {
			return nil
		}
	}
}

func (s *stub) answer(in *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	switch m := in.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		cluster := in.Attributes["envoy.filters.http.ext_proc"].GetFields()["xds.cluster_name"].GetStringValue()
		s.mu.Lock()
		s.routes = append(s.routes, cluster)
		s.mu.Unlock()
		return onHeaders(m.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	default:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	}
}

func onHeaders(h *extprocv3.HttpHeaders) *extprocv3.ProcessingResponse {
	if value(h, "x-test-refuse") != "" {
		return &extprocv3.ProcessingResponse{
			DynamicMetadata: decided("refused"),
			Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
				Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
					set("content-type", "application/json"), set("retry-after", "7"), set("x-headgate-reason", "test"), set("x-other", "filtered"),
				}},
				Body: []byte(`{"error":{}}`),
			}},
		}
	}
	common := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{RemoveHeaders: []string{"x-omniroute-lease-owner"}}}
	if connection := value(h, "x-test-connection"); connection != "" {
		common.ClearRouteCache = true
		common.HeaderMutation.SetHeaders = []*corev3.HeaderValueOption{set("x-omniroute-connection", connection), set("x-other", "filtered")}
	}
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: decided("admitted"),
		Response:        &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}},
	}
}

func decided(decision string) *structpb.Struct {
	text := structpb.NewStringValue
	return &structpb.Struct{Fields: map[string]*structpb.Value{"headgate": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"decision": text(decision), "reason": text("test"), "bytes": structpb.NewNumberValue(12345678), "cost": structpb.NewNumberValue(3),
		"lane": text("lane_0"), "wait_ms": structpb.NewNumberValue(0),
	}})}}
}

func value(h *extprocv3.HttpHeaders, key string) string {
	for _, v := range h.GetHeaders().GetHeaders() {
		if v.Key == key {
			return string(v.RawValue)
		}
	}
	return ""
}

func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
