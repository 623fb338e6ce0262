package extproc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/pkg/extproc/wire"
)

// inbox receives a stream's messages. The first is received in place, since many exchanges need no other; from then on
// a goroutine receives, so that the exchange can wait for a message and for capacity at once.
//
// Two messages take turns: the goroutine fills one while the exchange works on the other, and the hand-over of the
// next is the sign that the exchange is done with the last. So at most two chunks of a body are lent at any time.
//
// The messages go back to a pool once neither the exchange nor the goroutine has a use for them: the goroutine may outlast the
// exchange by a little. Whatever an exchange knows of its messages for longer than that is a copy.
type inbox struct {
	stream   grpc.ServerStream
	messages *messages
	handover chan received
}

// messages are those of one exchange.
type messages struct {
	turns [2]wire.Message
	users atomic.Int32 // the exchange, and the goroutine that receives
}

var messagePool = sync.Pool{New: func() any { return new(messages) }}

// newInbox returns the inbox of a stream. Whoever makes it closes it.
func newInbox(stream grpc.ServerStream) inbox {
	m, _ := messagePool.Get().(*messages)
	m.users.Store(1)
	return inbox{stream: stream, messages: m}
}

// close is called when the exchange has no use for its messages any more.
func (in *inbox) close() { in.messages.leave() }

// leave gives the messages back when nobody else uses them.
func (m *messages) leave() {
	if m.users.Add(-1) > 0 {
		return
	}
	for i := range m.turns {
		m.turns[i].Recycle()
	}
	messagePool.Put(m)
}

// received is a message, or the end of the stream.
type received struct {
	message *wire.Message
	err     error
}

// first receives the first message.
func (in *inbox) first() (*wire.Message, error) {
	m := &in.messages.turns[0]
	if err := in.stream.RecvMsg(m); err != nil {
		return nil, err
	}
	return m, nil
}

// next is where the following messages arrive. The last thing to arrive is an error; the channel is closed after it, or
// without it when the stream was cancelled meanwhile. The goroutine behind it ends with the stream.
func (in *inbox) next() <-chan received {
	if in.handover == nil {
		in.handover = make(chan received)
		in.messages.users.Add(1)
		go receive(in.stream, in.messages, in.handover)
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

func receive(stream grpc.ServerStream, m *messages, handover chan<- received) {
	defer m.leave()
	defer close(handover)
	ctx := stream.Context()
	for turn := 1; ; turn = 1 - turn {
		next := received{message: &m.turns[turn]}
		next.err = receiveInto(stream, next.message)
		select {
		case handover <- next:
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
