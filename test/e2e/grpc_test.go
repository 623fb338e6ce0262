package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/stack"
)

// dialGRPC connects a gRPC client to Envoy.
func dialGRPC(t *testing.T, s *stack.Stack) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+s.Envoy.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestGRPCCallersSeeGRPCCodes(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 2MiB, budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	conn := dialGRPC(t, s)
	hello := []byte("hello")
	if got, err := stack.Say(t.Context(), conn, hello); err != nil || !bytes.Equal(got, hello) {
		t.Errorf("Say = %q, %v, want the message back", got, err)
	}
	megabyte := make([]byte, mebibyte)
	if got, err := stack.Say(t.Context(), conn, megabyte); err != nil || !bytes.Equal(got, megabyte) {
		t.Errorf("Say 1 MiB = %d bytes, %v, want the message back", len(got), err)
	}
	refusedWith := func(what string, payload []byte, code codes.Code, reason string) {
		t.Helper()
		var header, trailer metadata.MD
		err := conn.Invoke(t.Context(), "/echo.Echo/Say", &stack.Payload{Value: payload}, &stack.Payload{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if got := status.Code(err); got != code {
			t.Errorf("%s = %v (%v), want %v", what, got, err, code)
		}
		if got := append(header.Get("x-headgate-reason"), trailer.Get("x-headgate-reason")...); len(got) == 0 || got[0] != reason {
			t.Errorf("%s: reason %q, want %q", what, got, reason)
		}
	}
	refusedWith("2 MiB and its framing over a limit of 2 MiB", make([]byte, 2*mebibyte), codes.ResourceExhausted, "payload_too_large")
	empty := fill(t, s)
	refusedWith("1 MiB while the budget is taken", megabyte, codes.Unavailable, "queue_timeout")
	empty()
}

// TestGRPCDetails: a refusal says in the status's details why, and when to come back; the message is plain text. A client
// with a retry policy comes back after that time, and not at all where it is hopeless.
func TestGRPCDetails(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 2MiB, budget: {override: 8MiB}, queue: {calmWait: 50ms}}"})
	policy := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED"]}}]}`
	retries := []grpc.DialOption{grpc.WithDefaultServiceConfig(policy), grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(4 * mebibyte))}
	attempts := func() int64 {
		t.Helper()
		stats, err := s.Envoy.Stats(t.Context(), "downstream_rq_total")
		if err != nil {
			t.Fatal(err)
		}
		return stats["http.ingress.downstream_rq_total"]
	}
	refused := func(size int, reason string, wait time.Duration, options ...grpc.DialOption) {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:"+s.Envoy.Address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = stack.Say(t.Context(), conn, make([]byte, size))
		var info *errdetails.ErrorInfo
		var retry *errdetails.RetryInfo
		for _, d := range status.Convert(err).Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				info = d
			case *errdetails.RetryInfo:
				retry = d
			}
		}
		if info.GetReason() != reason || info.GetDomain() != "headgate" || retry.GetRetryDelay().AsDuration() < wait || (retry != nil) != (wait > 0) {
			t.Errorf("%s: details %v, want the reason and a delay of at least %v", reason, status.Convert(err).Details(), wait)
		}
		if message := status.Convert(err).Message(); message == "" || strings.ContainsAny(message, "{}\"") {
			t.Errorf("%s: message %q, want plain text", reason, message)
		}
	}
	refused(3*mebibyte, "payload_too_large", 0)
	before := attempts()
	refused(3*mebibyte, "payload_too_large", 0, retries...)
	if got := attempts() - before; got != 1 {
		t.Errorf("payload_too_large: %d attempts, want 1", got)
	}
	empty := fill(t, s)
	defer empty()
	refused(mebibyte, "queue_timeout", 2*time.Second)
	before, begun := attempts(), time.Now()
	refused(mebibyte, "queue_timeout", 2*time.Second, retries...)
	if got, took := attempts()-before, time.Since(begun); got != 3 || took < 4*time.Second {
		t.Errorf("queue_timeout: %d attempts in %v, want 3 with 2 s or more between them", got, took)
	}
}

// TestGRPCStreamsPass: messages of a stream pass one by one while it is open, and the byte limit holds for their sum.
func TestGRPCStreamsPass(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}"})
	chat, err := stack.Chat(t.Context(), dialGRPC(t, s))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := chat.Send(&stack.Payload{Value: make([]byte, 64<<10)}); err != nil {
			t.Fatal(err)
		}
		if got, err := chat.Recv(); err != nil || len(got.GetValue()) != 64<<10 {
			t.Fatalf("message %d came back with %d bytes (%v), want 64 KiB while the stream is open", i, len(got.GetValue()), err)
		}
	}
	if h := health(t, s); h.Exchanges.InFlight != 1 {
		t.Errorf("%d exchanges in flight, want 1 while the stream is open", h.Exchanges.InFlight)
	}
	if err := chat.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := chat.Recv(); status.Code(err) != codes.Unknown && err.Error() != "EOF" {
		t.Errorf("the stream ended with %v, want EOF", err)
	}
}

// TestOnlyGRPCIsAnsweredAsGRPC tells content types apart.
func TestOnlyGRPCIsAnsweredAsGRPC(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1KiB}"})
	for contentType, isGRPC := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc+json": true,
		"application/graphql": false, "application/graphql+json": false, "application/grpcurl": false, "application/json": false, "": false,
	} {
		t.Run(contentType, func(t *testing.T) {
			protocols := map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}
			for http2, protocol := range protocols {
				headers := map[string]string{}
				if contentType != "" {
					headers["content-type"] = contentType
				}
				got, err := upload(t.Context(), s, client(t, http2), http2, true, request{path: "/echo.Echo/Say", body: zeros(1025), length: 1025, headers: headers})
				if !isGRPC {
					refusedAs(t, protocol, got, err, 413, "payload_too_large")
					if grpcStatus := got.header.Get("grpc-status") + got.trailer.Get("grpc-status"); grpcStatus != "" {
						t.Errorf("%s: grpc-status %q, want none", protocol, grpcStatus)
					}
					continue
				}
				if err != nil || got.status != 200 || got.header.Get("grpc-status") != "8" || got.reason() != "payload_too_large" || len(got.body) > 0 {
					t.Errorf("%s = %d, grpc-status %q, reason %q, body %q (%v), want 200 with status 8 and no body", protocol, got.status, got.header.Get("grpc-status"), got.reason(), got.body, err)
				}
				if message := got.header.Get("grpc-message"); len(message) > 512 || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("%s: grpc-message %q, want short and ASCII", protocol, message)
				}
			}
		})
	}
	// What a grpc-web caller gets depends on Envoy's grpc_web filter; without it, it is plain HTTP.
	got, err := upload(t.Context(), s, nil, false, true, request{path: "/web", body: zeros(1025), length: 1025, headers: map[string]string{"content-type": "application/grpc-web+proto"}})
	if err != nil || got.reason() != "payload_too_large" || (got.status != 413 && got.header.Get("grpc-status") != "8") {
		t.Errorf("grpc-web = %s (%v), want the refusal", fmt.Sprint(got), err)
	}
}
