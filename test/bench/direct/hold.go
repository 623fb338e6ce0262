package direct

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// holdingAtOnce is how many streams are opened at a time, and how many go over one connection.
const (
	holdingAtOnce    = 64
	streamsOverOne   = 2500
	errEndedByServer = "the server ended a stream that was to be held"
)

// Hold sends the requests of o.Streams exchanges, waits for all their answers, and keeps them there: their responses never come.
// The returned function ends them.
func Hold(ctx context.Context, o Options) (release func(), err error) {
	script, err := newScript(o.Shape)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var conns []*grpc.ClientConn
	release = func() {
		cancel()
		for _, c := range conns {
			c.Close()
		}
	}
	for n := 0; n < o.Streams; n += streamsOverOne {
		conn, err := grpc.NewClient(o.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
		if err != nil {
			release()
			return nil, fmt.Errorf("hold %s: %w", o.Shape.Name, err)
		}
		conns = append(conns, conn)
	}
	failures := make([]error, holdingAtOnce)
	var all sync.WaitGroup
	for first := range holdingAtOnce {
		all.Go(func() {
			for i := first; i < o.Streams && failures[first] == nil; i += holdingAtOnce {
				if failures[first] = holdOne(ctx, conns[i/streamsOverOne], script); failures[first] != nil {
					cancel()
				}
			}
		})
	}
	all.Wait()
	if err := firstFault(failures); err != nil {
		release()
		return nil, fmt.Errorf("hold %s: %w", o.Shape.Name, err)
	}
	return release, nil
}

// firstFault is the one that made the others end.
func firstFault(failures []error) (fault error) {
	for _, err := range failures {
		if err != nil && (fault == nil || status.Code(fault) == codes.Canceled) {
			fault = err
		}
	}
	return fault
}

// holdOne sends one request and takes its answers.
func holdOne(ctx context.Context, conn *grpc.ClientConn, script *script) error {
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc, processMethod)
	if err != nil {
		return err
	}
	for _, message := range script.request {
		if err := send(stream, message); err != nil {
			return err
		}
	}
	for range script.request {
		switch ended, err := receive(stream); {
		case err != nil:
			return err
		case ended:
			return errors.New(errEndedByServer)
		}
	}
	return nil
}
