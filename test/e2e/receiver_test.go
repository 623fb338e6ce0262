package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// receiver takes spans by OTLP, over gRPC and over HTTP on one port, from everybody who has some.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	addr string

	mu    sync.Mutex
	spans []span
	raw   bytes.Buffer // all that came, encoded
}

// span is one that was received.
type span struct {
	service string
	*tracev1.Span
}

func (s span) id() string     { return hex.EncodeToString(s.SpanId) }
func (s span) parent() string { return hex.EncodeToString(s.ParentSpanId) }

// text returns an attribute, "" when there is none or it is no text.
func (s span) text(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// startReceiver starts a receiver that ends with the test.
func startReceiver(t *testing.T) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{addr: l.Addr().String()}
	rpc := grpc.NewServer()
	collector.RegisterTraceServiceServer(rpc, r)
	serveBoth(t, l, func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(w, q)
			return
		}
		r.serveHTTP(w, q)
	})
	t.Cleanup(rpc.Stop)
	return r
}

// serveBoth serves HTTP/1.1 and HTTP/2 without TLS until the test ends.
func serveBoth(t *testing.T, l net.Listener, h http.HandlerFunc) {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = s.Serve(l) }() // ends with ErrServerClosed
	t.Cleanup(func() { s.Close() })
}

func (r *receiver) serveHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	request := &collector.ExportTraceServiceRequest{}
	if err != nil || q.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
		http.Error(w, "not an export of traces", http.StatusBadRequest)
		return
	}
	answer, err := r.Export(q.Context(), request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	encoded, err := proto.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(encoded) // fails when the sender is gone
}

// Export implements the collector's service.
func (r *receiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	encoded, err := proto.Marshal(q)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw.Write(encoded)
	for _, resource := range q.ResourceSpans {
		service := ""
		for _, a := range resource.Resource.GetAttributes() {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, span{service, s})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// received returns the spans that came so far.
func (r *receiver) received() []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]span(nil), r.spans...)
}

// said reports whether anything that was exported holds a text.
func (r *receiver) said(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.raw.Bytes(), []byte(text))
}
