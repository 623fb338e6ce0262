package stack

import (
	"context"
	"errors"
	"io"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The gRPC echo is described by hand: two methods over a well-known type need no generated code.
const (
	echoService = "echo.Echo"
	echoSay     = "/" + echoService + "/Say"
	echoChat    = "/" + echoService + "/Chat"
)

// echoMessageLimit is above any body limit that is tested.
const echoMessageLimit = 256 << 20

// Payload is the message of the gRPC echo, in both directions.
type Payload = wrapperspb.BytesValue

// EchoStatus is the metadata key of a call that is to end with that status code: at once, or in the chat after an echo.
const EchoStatus = "echo-status"

// statusAsked is the status that a call is to end with; nil is OK.
func statusAsked(ctx context.Context) error {
	for _, value := range metadata.ValueFromIncomingContext(ctx, EchoStatus) {
		if code, err := strconv.ParseUint(value, 10, 8); err == nil {
			return status.Error(codes.Code(code), "as asked")
		}
	}
	return nil
}

func newEchoServer() *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(echoMessageLimit))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: echoService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			m := &Payload{}
			if err := decode(m); err != nil {
				return nil, err
			}
			return m, statusAsked(ctx)
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Chat", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				m := &Payload{}
				if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := stream.SendMsg(m); err != nil {
					return err
				}
				if err := statusAsked(stream.Context()); err != nil {
					return err
				}
			}
		}}},
	}, nil)
	return s
}

// Say calls the unary method of the gRPC echo.
func Say(ctx context.Context, c grpc.ClientConnInterface, payload []byte) ([]byte, error) {
	out := &Payload{}
	err := c.Invoke(ctx, echoSay, &Payload{Value: payload}, out, grpc.MaxCallRecvMsgSize(echoMessageLimit))
	return out.GetValue(), err
}

// Chat opens the bidirectional method of the gRPC echo, which sends every message back.
func Chat(ctx context.Context, c grpc.ClientConnInterface) (grpc.BidiStreamingClient[Payload, Payload], error) {
	s, err := c.NewStream(ctx, &grpc.StreamDesc{StreamName: "Chat", ClientStreams: true, ServerStreams: true}, echoChat)
	if err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[Payload, Payload]{ClientStream: s}, nil
}
