package extproc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/pkg/extproc/wire"
)

// inbox receives a stream's messages. The first is received in place, since many exchanges need no other; from then on
// a goroutine receives, so that the exchange can wait for a message and for capacity at once.
//
// Two messages take turns: the goroutine fills one while the exchange works on the other, and the hand-over of the
// next is the sign that the exchange is done with the last. So at most two chunks of a body are lent at any time.
type inbox struct {
	stream   grpc.ServerStream
	messages [2]wire.Message
	handover chan received
}

// received is a message, or the end of the stream.
type received struct {
	message *wire.Message
	err     error
}

// first receives the first message.
func (in *inbox) first() (*wire.Message, error) {
	if err := in.stream.RecvMsg(&in.messages[0]); err != nil {
		return nil, err
	}
	return &in.messages[0], nil
}

// next is where the following messages arrive. The last thing to arrive is an error; the channel is closed after it, or
// without it when the stream was cancelled meanwhile. The goroutine behind it ends with the stream.
func (in *inbox) next() <-chan received {
	if in.handover == nil {
		in.handover = make(chan received)
		go in.receive(in.stream.Context())
	}
	return in.handover
}

// end is the error in what next yields, nil where it is a message.
func (r received) end() error {
	if r.message == nil && r.err == nil {
		return context.Canceled // the channel is closed
	}
	return r.err
}

func (in *inbox) receive(ctx context.Context) {
	defer close(in.handover)
	for turn := 1; ; turn = 1 - turn {
		next := received{message: &in.messages[turn]}
		next.err = receiveInto(in.stream, next.message)
		select {
		case in.handover <- next:
		case <-ctx.Done():
			next.message.Free()
			return
		}
		if next.err != nil {
			return
		}
	}
}

// receiveInto keeps a fault in decoding from ending the process: it ends the stream.
func receiveInto(stream grpc.ServerStream, m *wire.Message) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("receive: %v", fault)
		}
	}()
	return stream.RecvMsg(m)
}
