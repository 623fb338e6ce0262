package extproc

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// TestExchangesShareNothing: exchanges that run beside each other and after each other, some of which are cancelled at any point,
// get the bytes of their own client back, their own lane and their own headers, although they take turns with the same messages.
func TestExchangesShareNothing(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		enforced := c.Clusters["*"]
		enforced.Lanes = adaptive.DefaultSettings()
		enforced.Lanes.Mode, enforced.Lanes.InitialLimit, enforced.Lanes.MaxLimit = adaptive.Enforce, 100_000, 100_000
		c.Clusters = map[string]config.Cluster{"chat": enforced}
	})
	const clients, each = 16, 40
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range each {
				if err := shareNothing(r, i, n); err != nil {
					t.Errorf("client %d, exchange %d: %v", i, n, err)
					return
				}
			}
		})
	}
	all.Wait()
	for p := wire.RequestHeaders; p <= wire.ResponseTrailers; p++ { // frames that all exchanges send are those they were
		if sent, err := wire.NewCodec().Marshal(wire.Continue(p).Outgoing()); err != nil || string(sent.Materialize()) != string(wire.Continue(p)) || len(sent) != 1 {
			t.Errorf("phase %d: % x is sent (%v), want % x", p, sent.Materialize(), err, wire.Continue(p))
		}
	}
}

// shareNothing makes one exchange and checks that all that comes back is its own. Every third is cancelled somewhere.
func shareNothing(r *rig, client, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := r.client.Process(ctx)
	if err != nil {
		return err
	}
	own := fmt.Sprintf("client-%d-%d", client, n)
	body := strings.Repeat(own+" ", 1+client*n*7%3000)
	messages := []*extprocv3.ProcessingRequest{
		rh(announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED), false, ":method", "POST", "content-type", "text/plain", "x-tenant-id", own, "x-headgate-"+own, "1"),
		rb(body[:len(body)/2], false), rb(body[len(body)/2:], true), sh("200", false), st(),
	}
	last := len(messages)
	if n%3 == 2 {
		last = 1 + n%len(messages)
	}
	sent := make(chan struct{})
	defer func() { <-sent }()
	go func() { // as Envoy does, without waiting for answers
		defer close(sent)
		for _, m := range messages[:last] {
			if s.Send(m) != nil {
				return
			}
		}
	}()
	if last < len(messages) {
		_, _ = s.Recv() // whatever it is: the next exchange gets what this one leaves
		cancel()
		return nil
	}
	var lane, removed, echoed string
	for range messages {
		a, err := s.Recv()
		if err != nil {
			return err
		}
		if fields := a.GetDynamicMetadata().GetFields()[metadataNamespace].GetStructValue().GetFields(); fields != nil {
			lane = fields["lane"].GetStringValue()
		}
		removed += strings.Join(a.GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders(), ",")
		echoed += string(a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if lane != r.server.LaneOf(own) || removed != "x-headgate-"+own || echoed != body {
		return fmt.Errorf("lane %s, headers %q removed, %d bytes of body; want %s, %q, its %d bytes", lane, removed, len(echoed), r.server.LaneOf(own), "x-headgate-"+own, len(body))
	}
	return nil
}
