package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestAnswersAreOfTheKindOfTheirMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		request *extproc.ProcessingRequest
		ok      func(*extproc.ProcessingResponse) bool
	}{
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{}}, func(r *extproc.ProcessingResponse) bool { return r.GetRequestHeaders() != nil }},
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{}}, func(r *extproc.ProcessingResponse) bool { return r.GetRequestBody() != nil }},
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{}}, func(r *extproc.ProcessingResponse) bool { return r.GetRequestTrailers() != nil }},
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{}}, func(r *extproc.ProcessingResponse) bool { return r.GetResponseHeaders() != nil }},
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{}}, func(r *extproc.ProcessingResponse) bool { return r.GetResponseBody() != nil }},
		{&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{}}, func(r *extproc.ProcessingResponse) bool { return r.GetResponseTrailers() != nil }},
	} {
		if got := answer(test.request); !test.ok(got) {
			t.Errorf("got %v for %T", got, test.request.Request)
		}
	}
}

func TestOnlyTheFirstExchangeIsRecordedAndNoBody(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recording.jsonl")
	r, err := newRecorder(path)
	if err != nil {
		t.Fatal(err)
	}
	if first, second := r.begin(), r.begin(); !first || second {
		t.Errorf("first exchange recorded: %v, second: %v, want only the first", first, second)
	}
	body := &extproc.HttpBody{Body: []byte("secret"), EndOfStream: true}
	request := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: body}}
	if err := r.write(request); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(got, []byte(`{"body":6,"message":`)) || bytes.Contains(got, []byte("c2VjcmV0")) {
		t.Errorf("got %q, error %v, want the length 6 and no body", got, err)
	}
	if string(body.Body) != "secret" {
		t.Errorf("the message was changed to %q", body.Body)
	}
}

// TestTheBareServerKnowsEachMessage: whatever stands before the part of the exchange, and it answers with one of the same kind.
func TestTheBareServerKnowsEachMessage(t *testing.T) {
	t.Parallel()
	head := protowire.AppendTag(nil, 8, protowire.BytesType) // the metadata
	head = protowire.AppendBytes(head, []byte("metadata"))
	for field := protowire.Number(2); field <= 7; field++ {
		message := protowire.AppendBytes(protowire.AppendTag(head[:len(head):len(head)], field, protowire.BytesType), nil)
		got := phaseIn(message)
		if want, _, _ := protowire.ConsumeTag(answers[got]); got != phase(field) || want != field-1 {
			t.Errorf("field %d: got phase %d, answered with field %d, want %d and %d", field, got, want, field, field-1)
		}
	}
	if got := phaseIn(head); got != 0 {
		t.Errorf("a message without a part of the exchange: got phase %d, want 0", got)
	}
}

// TestBareReadsMessagesInPieces: gRPC hands a message over in the buffers that it was received into, which end anywhere.
func TestBareReadsMessagesInPieces(t *testing.T) {
	t.Parallel()
	message, err := proto.Marshal(&extproc.ProcessingRequest{
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"xds.cluster_name": structpb.NewStringValue("chat")}}},
		ProtocolConfig: &extproc.ProtocolConfiguration{SendBodyWithoutWaitingForHeaderResponse: true},
		Request:        &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: make([]byte, 3000)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const requestBody = 4
	for at := range message {
		var got phase
		data := mem.BufferSlice{mem.SliceBuffer(message[:at]), mem.SliceBuffer(message[at:])}
		if err := newBareCodec().Unmarshal(data, &got); err != nil || got != requestBody {
			t.Fatalf("divided at %d of %d: field %d, %v; want %d", at, len(message), got, err, requestBody)
		}
	}
}
