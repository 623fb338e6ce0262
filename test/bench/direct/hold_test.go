package direct

import (
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/test/bench/load"
)

// TestHeldStreamsStayOpen: each has sent its request, and none ends before it is released.
func TestHeldStreamsStayOpen(t *testing.T) {
	t.Parallel()
	p := &processor{respond: goOn}
	shape := load.Shapes()[2]
	const streams = 100
	release, err := Hold(t.Context(), Options{Address: serve(t, p), Shape: shape, Streams: streams})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got := p.bytes.Load(); got != int64(streams*shape.Bytes) {
		t.Errorf("the server got %d bytes, want %d of %d streams", got, streams*shape.Bytes, streams)
	}
}

func TestStreamsThatEndAreNotHeld(t *testing.T) {
	t.Parallel()
	p := &processor{respond: func(*extproc.ProcessingRequest) *extproc.ProcessingResponse { return nil }}
	if _, err := Hold(t.Context(), Options{Address: serve(t, p), Shape: load.Shapes()[0], Streams: 1}); err == nil {
		t.Error("got no error for a server that ends streams")
	}
}
