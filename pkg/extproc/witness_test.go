package extproc

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// witnessing enforces lanes on all clusters and wants a witness for one response in sample.
func witnessing(sample int) func(*config.Config) {
	return func(c *config.Config) {
		any := c.Clusters[config.AnyCluster]
		any.Lanes.Mode, any.Lanes.FirstTokenSample = adaptive.Enforce, sample
		c.Clusters[config.AnyCluster] = any
	}
}

// responding opens an exchange, up to the response headers, and returns the name it gives its witness.
func (r *rig) responding() (s *stream, witness string) {
	r.t.Helper()
	s = r.open()
	s.send(rh(early, false), rb(`{"stream":true}`, true))
	admitted := s.wants("RH", "RB")
	s.send(sh("200", false, "content-type", "text/event-stream"))
	s.wants("SH")
	fields := admitted[0].GetDynamicMetadata().GetFields()[metadataNamespace].GetStructValue().GetFields()
	return s, fields[witnessKey].GetStringValue()
}

// sendWitness is what Envoy's second filter sends of a response whose exchange has that name.
func (r *rig) sendWitness(name string) {
	r.t.Helper()
	w := r.open()
	first := sb("data: x\n\n", false)
	first.ProtocolConfig = &extprocv3.ProtocolConfiguration{ResponseBodyMode: modev3.ProcessingMode_STREAMED}
	first.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metadataNamespace: {Fields: map[string]*structpb.Value{
		witnessKey: structpb.NewStringValue(name),
	}}}}
	w.send(first)
	w.wants("SB")
	w.ended()
}

func (r *rig) activeCost() int { return r.lanes.Controller("chat").Totals().ActiveCost }

func (r *rig) wantCost(want int, when string) {
	r.t.Helper()
	if got := r.activeCost(); got != want {
		r.t.Errorf("%s: active cost %d, want %d", when, got, want)
	}
}

// TestWitnessIsTheFirstToken: the price of the prompt is held to the first token, and the witness brings that, once one has
// been seen. Before that, and after many responses that had none, the headers are taken for it.
func TestWitnessIsTheFirstToken(t *testing.T) {
	r := newRig(t, witnessing(1))
	first, name := r.responding()
	r.wantCost(1, "after the headers, no witness ever seen")
	r.sendWitness(name)
	first.finish()

	second, name := r.responding()
	before := r.activeCost()
	if before <= 1 {
		t.Errorf("after the headers of a witnessed cluster: active cost %d, want the prompt's, above 1", before)
	}
	for _, unknown := range []string{"", "x", name[:len(name)-1] + "?"} {
		r.sendWitness(unknown)
		r.wantCost(before, fmt.Sprintf("after the unknown witness %q", unknown))
	}
	r.sendWitness(name)
	r.wantCost(1, "after the witness")
	r.sendWitness(name)
	r.wantCost(1, "after the same witness again")
	second.finish()
	r.sendWitness(name) // late

	if got := r.lanes.Controller("chat").Totals().Signal; got != adaptive.FromWitness {
		t.Errorf("signal %q, want witness", got)
	}
	for range missesTolerated {
		s, _ := r.responding()
		s.finish()
	}
	r.settled()
	third, name := r.responding()
	r.wantCost(1, "after the headers, since witnesses stopped")
	r.sendWitness(name)
	third.finish()
	if got := r.lanes.Controller("chat").Totals().Signal; got != adaptive.FromHeaders {
		t.Errorf("signal %q, want headers after %d responses without a witness", got, missesTolerated)
	}
	r.settled()
	if n := len(r.server.witnesses.waiting); n != 0 {
		t.Errorf("%d exchanges wait for a witness after all have ended, want 0", n)
	}
}

// TestWitnessSample: of six responses with a sample of one in three, two are named.
func TestWitnessSample(t *testing.T) {
	r := newRig(t, witnessing(3))
	named := 0
	for range 6 {
		s, name := r.responding()
		if name != "" {
			named++
			r.sendWitness(name)
		} else if named > 0 {
			// It drops when the first token is expected, after as long as those in the sample took.
			if !eventually(func() bool { return r.activeCost() == 1 }) {
				t.Errorf("after the headers of a response outside the sample: active cost %d, want 1", r.activeCost())
			}
		}
		s.finish()
		r.settled()
	}
	if named != 2 {
		t.Errorf("%d of 6 responses are to be witnessed, want 2", named)
	}
}

// TestBodyMessagesAreTheFirstToken: where Envoy sends the response body anyway, no witness is needed.
func TestBodyMessagesAreTheFirstToken(t *testing.T) {
	r := newRig(t, witnessing(1))
	s := r.open()
	mode := &extprocv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_STREAMED, ResponseBodyMode: modev3.ProcessingMode_STREAMED,
		SendBodyWithoutWaitingForHeaderResponse: true}
	s.send(rh(mode, false), rb(`{"stream":true}`, true))
	s.wants("RH", "RB")
	s.send(sh("200", false, "content-type", "text/event-stream"))
	s.wants("SH")
	if got := r.activeCost(); got <= 1 {
		t.Errorf("after the headers: active cost %d, want the prompt's, above 1", got)
	}
	s.send(sb("data: x\n\n", false))
	s.wants("SB")
	r.wantCost(1, "after the first body message")
	s.finish()
	if got := r.lanes.Controller("chat").Totals().Signal; got != adaptive.FromBody {
		t.Errorf("signal %q, want body", got)
	}
}

// TestNoWitnessOutsideEnforce: in shadow mode nothing is added to a response unless it is asked for.
func TestNoWitnessOutsideEnforce(t *testing.T) {
	for setting, want := range map[adaptive.FirstToken]bool{adaptive.FirstTokenAuto: false, adaptive.FirstTokenHeaders: false, adaptive.FirstTokenWitness: true} {
		t.Run(string(setting), func(t *testing.T) {
			r := newRig(t, func(c *config.Config) {
				any := c.Clusters[config.AnyCluster]
				any.Lanes.Mode, any.Lanes.FirstToken = adaptive.Shadow, setting
				c.Clusters[config.AnyCluster] = any
			})
			s, name := r.responding()
			if got := name != ""; got != want {
				t.Errorf("named for a witness: %v, want %v", got, want)
			}
			s.finish()
		})
	}
}
