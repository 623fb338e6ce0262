package extproc

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
)

// cut is a stream that ends before anything can be sent on it.
type cut struct{ *dialogue }

func (c cut) SendMsg(any) error { return context.Canceled }

// TestAnAdmissionThatCannotBeSentIsNone: Envoy's stream ends while the exchange is decided. It is counted as a client that
// left, and not as admitted.
func TestAnAdmissionThatCannotBeSentIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual(t, 4*mib, func(*config.Config) {})
		d := &dialogue{in: make(chan *extprocv3.ProcessingRequest, 1), out: make(chan *extprocv3.ProcessingResponse, 1), ended: make(chan struct{})}
		d.ctx, d.cancel = context.WithCancel(t.Context())
		d.in <- rh(early, true)
		if err := v.server.process(cut{d}); err != nil {
			t.Errorf("the stream ended with %v, want in good order", err)
		}
		if n := len(v.seen.decisions); n != 1 || v.seen.decisions[reasonClientGone] != 1 {
			t.Errorf("decisions %v, want one, %s", v.seen.decisions, reasonClientGone)
		}
		d.cancel()
		v.close()
	})
}

// TestAnAnswerBeforeTheDecision: what an earlier filter or a hasty upstream says goes on as it is, and is no admission.
func TestAnAnswerBeforeTheDecision(t *testing.T) {
	full := func(c *config.Config) { enforce(9)(c) }
	for name, test := range map[string]func(t *testing.T, r *rig, s *stream){
		"an earlier filter's": func(_ *testing.T, _ *rig, s *stream) {
			s.send(sh("403", false))
			s.wants("SH")
		},
		"an error before the body is there": func(_ *testing.T, _ *rig, s *stream) {
			s.send(rh(announce(modev3.ProcessingMode_STREAMED), false), rb(`{"a":`, false), sh("401", false))
			s.wants("RH", "RB", "SH")
		},
		"any during the wait for the lane": func(t *testing.T, r *rig, s *stream) {
			s.send(rh(announce(modev3.ProcessingMode_STREAMED), false), rb(`{}`, true))
			s.wants("RH")
			if !eventually(func() bool { return waitingFor(r) == 1 }) {
				t.Fatal("it does not wait")
			}
			s.send(sh("200", false))
			s.wants("RB", "SH")
			if n := waitingFor(r); n != 0 {
				t.Errorf("%d still wait, want none", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, full)
			holder := r.open()
			holder.send(rh(early, false), rb("{}", true))
			holder.wants("RH", "RB")
			s := r.open()
			test(t, r, s)
			if got := r.lanes.Snapshot()["chat"].ActiveCount; got != 1 {
				t.Errorf("%d active in the lane, want the holder alone", got)
			}
			s.finish()
			if admitted, early := r.seen.count(reasonAdmitted), r.seen.count(reasonAnsweredEarlier); admitted != 1 || early != 1 {
				t.Errorf("%d admitted and %d answered earlier, want the holder and 1", admitted, early)
			}
			holder.finish()
		})
	}
}

// waitingFor is how many wait in the lanes of chat.
func waitingFor(r *rig) int {
	s := r.lanes.Snapshot()["chat"]
	return s.QueuedCount + s.LaneQueuedCount
}

// TestNobodyWaitsBeyondTheCallersTime: for bytes and for the lane, in the modes that withhold the headers and in those that
// withhold what completes the body, as gRPC and Envoy say how long the caller waits.
func TestNobodyWaitsBeyondTheCallersTime(t *testing.T) {
	const patience = 700 * time.Millisecond
	for _, headers := range [][]string{
		{":method", "POST", "content-type", "application/json", "x-envoy-expected-rq-timeout-ms", "700"},
		{":method", "POST", "content-type", "application/grpc", "grpc-timeout", "700m"},
		{":method", "POST", "content-type", "application/grpc", "grpc-timeout", "1S", "x-envoy-expected-rq-timeout-ms", "700"},
	} {
		for name, p := range map[string]*extprocv3.ProtocolConfiguration{
			"early": early, "streamed": announce(modev3.ProcessingMode_STREAMED), "full duplex": announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED),
			"buffered": announce(modev3.ProcessingMode_BUFFERED), "none": announce(modev3.ProcessingMode_NONE),
		} {
			synctest.Test(t, func(t *testing.T) {
				v := newVirtual(t, 4*mib, func(c *config.Config) {
					enforce(1000)(c)
					c.Bytes.Queue.CalmWait, c.Bytes.Queue.MaxWait = 5*time.Second, 5*time.Second
				})
				defer v.close()
				waits := func(reason, body string) {
					t.Helper()
					began := time.Now()
					d := v.open()
					defer time.AfterFunc(time.Minute, d.cancel).Stop() // an answer that never comes is a failure, and no hang
					d.say(rh(p, false, append(slices.Clone(headers), "content-length", strconv.Itoa(len(body)))...))
					go d.say(rb(body, false))
					for a := d.hears(); a != nil && kind(a) != "immediate"; a = d.hears() {
					}
					took := time.Since(began)
					d.cancel()
					<-d.ended
					if took != patience || v.seen.count(reason) != 1 {
						t.Errorf("%s, %v: over after %v with decisions %v; want %s after the caller's %v", name, headers[4:], took, v.seen.decisions, reason, patience)
					}
				}
				hold, _, _ := v.bytes.Acquire(budget.Request{Key: "other", Bytes: 4 * mib})
				waits("queue_timeout", bytesOf(300_000))
				hold.Release()
				var taken adaptive.Permit
				v.lanes.Controller("chat").Acquire(&taken, adaptive.Request{Cost: 1000})
				waits("admission_deadline", "{}")
				taken.Done(adaptive.OK)
			})
		}
	}
}
