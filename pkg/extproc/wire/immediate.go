package wire

import (
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Immediate describes an immediate response: what the client gets instead of the upstream's answer.
type Immediate struct {
	Status     int    // HTTP status, 400 to 599
	GRPCStatus uint32 // set for gRPC requests only; 0 leaves it out
	Headers    []Header
	Body       []byte
	Details    string // shown as RESPONSE_CODE_DETAILS in Envoy's access log
}

// Frame encodes the immediate response.
func (i Immediate) Frame() (Frame, error) {
	response := &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(i.Status)}, //nolint:gosec // 400 to 599
		Headers: &extprocv3.HeaderMutation{},
		Body:    i.Body,
		Details: i.Details,
	}
	for _, h := range i.Headers {
		response.Headers.SetHeaders = append(response.Headers.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	if i.GRPCStatus != 0 {
		response.GrpcStatus = &extprocv3.GrpcStatus{Status: i.GRPCStatus}
	}
	b, err := proto.Marshal(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: response},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the immediate response: %w", err)
	}
	return b, nil
}
