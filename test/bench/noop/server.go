package main

import (
	"errors"
	"io"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// server answers every message with "go on".
type server struct {
	extproc.UnimplementedExternalProcessorServer
	recorder *recorder // nil when nothing is recorded
}

// Process serves one exchange.
func (s *server) Process(stream grpc.BidiStreamingServer[extproc.ProcessingRequest, extproc.ProcessingResponse]) error {
	var first bool
	if s.recorder != nil {
		first = s.recorder.begin()
		defer s.recorder.end(first)
	}
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		if first {
			if err := s.recorder.write(request); err != nil {
				return err
			}
		}
		if err := stream.Send(answer(request)); err != nil {
			return err
		}
	}
}

// answer lets the message pass unchanged.
func answer(request *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	switch request.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}}
	case *extproc.ProcessingRequest_RequestBody:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{}}}
	case *extproc.ProcessingRequest_RequestTrailers:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}}
	case *extproc.ProcessingRequest_ResponseHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}}
	case *extproc.ProcessingRequest_ResponseBody:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{}}}
	default:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}}
	}
}
