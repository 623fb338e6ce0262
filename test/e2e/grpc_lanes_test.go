package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/stack"
)

// TestGRPCOverloadLowersTheLimit: an upstream that refuses everybody is overloaded, whichever way it says so: as HTTP 503, as a
// gRPC response of trailers only, or in the trailers after a message. Another error is no overload.
func TestGRPCOverloadLowersTheLimit(t *testing.T) {
	t.Parallel()
	unary := func(ctx context.Context, s *stack.Stack, code codes.Code) func() error {
		conn := dialGRPC(t, s)
		return func() error {
			_, err := stack.Say(ctx, conn, []byte("hello"))
			return wantCode(err, code)
		}
	}
	afterMessage := func(ctx context.Context, s *stack.Stack, code codes.Code) func() error {
		conn := dialGRPC(t, s)
		return func() error {
			chat, err := stack.Chat(ctx, conn)
			if err != nil {
				return err
			}
			if err := chat.Send(&stack.Payload{Value: []byte("hello")}); err != nil {
				return err
			}
			if _, err := chat.Recv(); err != nil {
				return fmt.Errorf("no message before the status: %w", err)
			}
			_, err = chat.Recv()
			return wantCode(err, code)
		}
	}
	http503 := func(ctx context.Context, s *stack.Stack, _ codes.Code) func() error {
		c := client(t, false)
		md, _ := metadata.FromOutgoingContext(ctx)
		return func() error {
			got, err := send(ctx, s, c, request{path: "/status/503", headers: map[string]string{"x-tenant-id": md.Get("x-tenant-id")[0]}})
			if err == nil && got.status != http.StatusServiceUnavailable {
				err = fmt.Errorf("status %d, want 503", got.status)
			}
			return err
		}
	}
	for _, c := range []struct {
		name     string
		code     codes.Code
		call     func(context.Context, *stack.Stack, codes.Code) func() error
		overload bool
	}{
		{"HTTP 503", 0, http503, true},
		{"exhausted, trailers only", codes.ResourceExhausted, unary, true},
		{"unavailable, trailers only", codes.Unavailable, unary, true},
		{"exhausted, after a message", codes.ResourceExhausted, afterMessage, true},
		{"unavailable, after a message", codes.Unavailable, afterMessage, true},
		{"internal, trailers only", codes.Internal, unary, false},
		{"internal, after a message", codes.Internal, afterMessage, false},
		{"not found, trailers only", codes.NotFound, unary, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: learning})
			var all sync.WaitGroup
			for _, tenant := range []string{"a", "b", "c"} {
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant-id", tenant, stack.EchoStatus, fmt.Sprint(uint32(c.code)))
				call := c.call(ctx, s, c.code)
				all.Go(func() {
					for range 60 {
						if err := call(); err != nil {
							t.Errorf("tenant %s: %v", tenant, err)
							return
						}
						time.Sleep(50 * time.Millisecond)
					}
				})
			}
			all.Wait()
			lanes := lanesOf(t, s, "default")
			steps, _ := lanes["stepCounts"].(map[string]any)
			overloads, _ := steps["overload"].(float64)
			if limit := lanes["currentLimit"].(float64); c.overload && (overloads == 0 || limit > 0.8*64) {
				t.Errorf("limit %v after %v steps for overload, want at most 51 after one at least: %v", limit, overloads, steps)
			} else if !c.overload && overloads > 0 {
				t.Errorf("%v steps for overload, want none: %v", overloads, steps)
			}
		})
	}
}

func wantCode(err error, want codes.Code) error {
	if got := status.Code(err); got != want {
		return fmt.Errorf("ended with %v (%w), want %v", got, err, want)
	}
	return nil
}
