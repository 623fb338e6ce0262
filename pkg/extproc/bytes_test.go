package extproc

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
)

// TestSizesAreExact: up to the hard maximum a body passes, one byte more and it is refused, whatever was declared and in
// whatever pieces it comes.
func TestSizesAreExact(t *testing.T) {
	const large, hard = 256 << 10, mib
	r := newRig(t, nil)
	for _, size := range []int{0, 1, large - 1, large, hard - 1, hard, hard + 1} {
		for _, declared := range []bool{true, false} {
			for _, piece := range []int{16 << 10, 100_000, 64 * mib} {
				for name, protocol := range map[string]*extprocv3.ProtocolConfiguration{"early": early, "late": announce(modev3.ProcessingMode_STREAMED)} {
					what := fmt.Sprintf("%d bytes, declared %v, pieces of %d, %s", size, declared, piece, name)
					if got, want := r.upload(protocol, size, piece, declared), 200; size > hard {
						if got != 413 {
							t.Errorf("%s: %d, want 413", what, got)
						}
					} else if got != want {
						t.Errorf("%s: %d, want %d", what, got, want)
					}
				}
			}
		}
	}
}

// upload sends a body as Envoy does and returns the status the client would see.
func (r *rig) upload(protocol *extprocv3.ProtocolConfiguration, size, piece int, declared bool) int {
	r.t.Helper()
	s := r.open()
	headers := []string{":method", "POST", "content-type", "application/octet-stream"}
	if declared {
		headers = append(headers, "content-length", fmt.Sprint(size))
	}
	s.send(rh(protocol, false, headers...))
	for _, c := range chunks(bytesOf(size), piece) {
		if s.Send(c) != nil {
			break // refused: the stream is over
		}
	}
	if status := s.verdict(len(chunks(bytesOf(size), piece))); status != 200 {
		return status
	}
	s.send(sh("200", true))
	s.wants("SH")
	s.finish()
	return 200
}

// verdict receives the answers to the headers and to n chunks, or a refusal that comes among them.
func (s *stream) verdict(n int) (status int) {
	s.t.Helper()
	for range n + 1 {
		a := s.next()
		if i := a.GetImmediateResponse(); i != nil {
			s.ended()
			return int(i.GetStatus().GetCode())
		}
	}
	return 200
}

// TestHugeChunk: one chunk can be Envoy's whole connection buffer, and still gets its verdict.
func TestHugeChunk(t *testing.T) {
	r := newRig(t, nil)
	s := r.open()
	s.send(rh(early, false), rb(bytesOf(64*mib), true))
	if status := s.verdict(1); status != 413 {
		t.Errorf("a chunk of 64 MiB: %d, want 413", status)
	}
}

func TestContentLength(t *testing.T) {
	r := newRig(t, nil)
	inValue := rh(early, false)
	m := inValue.GetRequestHeaders().GetHeaders()
	m.Headers = append(m.Headers, &corev3.HeaderValue{Key: "content-length", Value: "2000000"})
	for _, c := range []struct {
		name    string
		request *extprocv3.ProcessingRequest
		status  int // 0: not refused on arrival
		reason  string
	}{
		{"too large, in raw_value", rh(early, false, "content-length", "2000000"), 413, "payload_too_large"},
		{"too large, in value", inValue, 413, "payload_too_large"},
		{"contradicting", rh(early, false, "content-length", "1", "content-length", "2"), 400, "invalid_content_length"},
		{"contradicting, joined", rh(early, false, "content-length", "1, 2"), 400, "invalid_content_length"},
		{"repeated", rh(early, false, "content-length", "5", "content-length", "5"), 0, ""},
		{"leading zero", rh(early, false, "content-length", "09999999999"), 0, ""},
		{"negative", rh(early, false, "content-length", "-1"), 0, ""},
		{"a sign", rh(early, false, "content-length", "+2000000"), 0, ""},
		{"too many digits", rh(early, false, "content-length", "99999999999999999999999"), 0, ""},
		{"hexadecimal", rh(early, false, "content-length", "0x200000"), 0, ""},
		{"empty", rh(early, false, "content-length", ""), 0, ""},
	} {
		s := r.open()
		s.send(c.request)
		if c.status != 0 {
			s.refused(c.status, c.reason)
		} else {
			s.send(rb("{}", true))
			s.wants("RH", "RB")
			s.finish()
		}
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

// TestChargesWhatArrives: a length that was not declared, or too small, makes no difference.
func TestChargesWhatArrives(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.HardMaxBody = 8 * mib })
	for _, c := range []struct {
		name    string
		headers []string
	}{{"undeclared", nil}, {"declared as 1", []string{"content-length", "1"}}} {
		s := r.open()
		s.send(rh(early, false, c.headers...), rb(bytesOf(2*mib), false))
		s.wants("RH", "RB")
		if got := r.bytes.Snapshot().InflightBytes; got < 2*mib || got > 4*mib {
			t.Errorf("%s: %d bytes reserved for 2 MiB that arrived, want 2 to 4 MiB", c.name, got)
		}
		s.send(rb("x", true))
		s.wants("RB")
		if got := r.bytes.Snapshot().InflightBytes; got != 2*mib+1 {
			t.Errorf("%s: %d bytes reserved at the end of the body, want %d", c.name, got, 2*mib+1)
		}
		s.send(sh("200", false))
		s.wants("SH")
		if got := r.bytes.Snapshot().InflightBytes; got != 0 {
			t.Errorf("%s: %d bytes reserved after the first response byte, want 0", c.name, got)
		}
		s.finish()
	}
}

func TestReleaseAtResponseEnd(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.ReleaseAt = budget.ReleaseAtResponseEnd })
	s := r.open()
	s.send(rh(early, false, "content-length", "300000"))
	s.send(chunks(bytesOf(300_000), 100_000)...)
	s.wants("RH", "RB", "RB", "RB")
	s.send(sh("200", false))
	s.wants("SH")
	if got := r.bytes.Snapshot().InflightBytes; got != 300_000 {
		t.Errorf("%d bytes reserved in mid-response, want 300000", got)
	}
	s.finish()
}

func TestBodyLargerThanTheBudget(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.HardMaxBody = 50 * mib })
	s := r.open()
	s.send(rh(early, false, "content-length", fmt.Sprint(5*mib)))
	status, reason, retry, _ := s.refusal()
	if status != 413 || reason != "body_exceeds_budget" || retry != "" {
		t.Errorf("declared: %d %s, retry-after %q; want 413 body_exceeds_budget without", status, reason, retry)
	}
	s = r.open()
	s.send(rh(early, false), rb(bytesOf(3*mib), false), rb(bytesOf(3*mib), false))
	s.wants("RH", "RB")
	s.refused(413, "body_exceeds_budget")
	if n := r.bytes.Snapshot().ShedsByReason[budget.BodyExceedsBudget]; n != 2 {
		t.Errorf("%d sheds counted, want 2", n)
	}
}

// TestContention: bodies share the budget; who finds it taken waits, bounded, and is then refused.
func TestContention(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.Queue.CalmWait = 300 * time.Millisecond })
	var holders []*stream
	for range 4 {
		s := r.open()
		s.send(rh(early, false, "content-length", fmt.Sprint(mib), "x-tenant-id", "a"))
		holders = append(holders, s)
	}
	if !eventually(func() bool { return r.bytes.Snapshot().InflightBytes == 4*mib }) {
		t.Fatalf("%d bytes reserved, want 4 MiB", r.bytes.Snapshot().InflightBytes)
	}
	began := time.Now()
	waits := r.open()
	waits.send(rh(early, false, "content-length", fmt.Sprint(mib)))
	status, reason, retry, _ := waits.refusal()
	if took := time.Since(began); status != 503 || reason != "queue_timeout" || !between(retry, 2, 4) || took < 280*time.Millisecond {
		t.Errorf("after %v: %d %s, retry-after %q; want 503 queue_timeout, 2 to 4, after 300 ms", took, status, reason, retry)
	}
	undeclared := r.open()
	undeclared.send(rh(early, false))
	undeclared.send(chunks(bytesOf(mib), 64<<10)...)
	if status := undeclared.verdict(16); status != 503 {
		t.Errorf("undeclared: %d, want 503", status)
	}

	granted := r.open()
	granted.send(rh(early, false, ":method", "POST", "content-length", fmt.Sprint(mib)))
	if !eventually(func() bool { return r.bytes.Snapshot().Waiting == 1 }) {
		t.Fatal("nobody waits for bytes, want one")
	}
	holders[0].cancel()
	granted.send(rb(bytesOf(mib), true))
	granted.wants("RH", "RB")
	granted.finish()
	for _, s := range holders[1:] {
		s.cancel()
	}
}

// TestGrowthIsBackPressure: in mid-body the chunk's answer is withheld while bytes are owed, then the body is refused.
func TestGrowthIsBackPressure(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		c.Bytes.HardMaxBody = 50 * mib
		c.Bytes.Queue.CalmWait = 400 * time.Millisecond
	})
	holder := r.open()
	holder.send(rh(early, false, "content-length", fmt.Sprint(2*mib)))
	if !eventually(func() bool { return r.bytes.Snapshot().InflightBytes == 2*mib }) {
		t.Fatal("the holder holds nothing")
	}
	s := r.open()
	s.send(rh(early, false), rb(bytesOf(mib), false))
	s.wants("RH", "RB")
	s.send(rb(bytesOf(3*mib/2), false))
	began := time.Now()
	s.refused(503, "queue_timeout")
	if took := time.Since(began); took < 380*time.Millisecond {
		t.Errorf("refused after %v, want the answer withheld for 400 ms first", took)
	}
	s = r.open()
	s.send(rh(early, false), rb(bytesOf(mib), false))
	s.wants("RH", "RB")
	s.send(rb(bytesOf(3*mib/2), true))
	time.Sleep(50 * time.Millisecond)
	holder.cancel()
	s.wants("RB")
	s.finish()
}

// TestBudgetIsNeverExceeded: many parallel bodies of 1 MiB, some declared, some lying, some leaving.
func TestBudgetIsNeverExceeded(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.Queue.CalmWait = 50 * time.Millisecond })
	done := make(chan struct{})
	var most int64
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				most = max(most, r.bytes.Snapshot().InflightBytes)
			}
		}
	})
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			headers := [][]string{{"content-length", fmt.Sprint(mib)}, nil, {"content-length", "1"}}[i%3]
			s := r.open()
			if s.Send(rh(early, false, headers...)) != nil {
				return
			}
			for _, c := range chunks(bytesOf(mib), 64<<10) {
				_ = s.Send(c)
			}
			if i%5 == 0 {
				s.cancel()
				return
			}
			for {
				a, err := s.Recv()
				if err != nil || a.GetImmediateResponse() != nil {
					return
				}
				if kind(a) == "RB" && i%2 == 0 {
					s.cancel()
				}
				if kind(a) == "RB" {
					_ = s.CloseSend()
				}
			}
		})
	}
	all.Wait()
	close(done)
	watch.Wait()
	if most > 4*mib || most == 0 {
		t.Errorf("at most %d bytes were reserved, want some and never above %d", most, 4*mib)
	}
}

// TestUploadTimeout: an upload that declares much and sends nothing must not pin the budget.
func TestUploadTimeout(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Bytes.UploadTimeout = 500 * time.Millisecond })
	stalled := r.open()
	stalled.send(rh(early, false, "content-length", fmt.Sprint(mib)))
	slow := r.open()
	slow.send(rh(early, false, "content-length", fmt.Sprint(mib)))
	slow.wants("RH")
	for range 4 {
		time.Sleep(200 * time.Millisecond)
		slow.send(rb(bytesOf(1000), false))
		slow.wants("RB")
	}
	stalled.wants("RH") // decided when the upload paused
	stalled.refused(408, "upload_timeout")
	slow.cancel()
}

// TestUploadIsTimedFromTheDecision: time that the decision took does not count as a stall.
func TestUploadIsTimedFromTheDecision(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		c.Bytes.UploadTimeout, c.Decision.UploadIdle = 300*time.Millisecond, 600*time.Millisecond
	})
	s := r.open()
	s.send(rh(early, false, "content-length", fmt.Sprint(mib)))
	s.wants("RH") // after 600 ms
	time.Sleep(50 * time.Millisecond)
	s.send(rb(bytesOf(1000), false))
	s.wants("RB")
	s.cancel()
}

// TestDeclaredBytesAreReservedFirst: where bodies go on before the decision, what is declared is reserved before the headers
// are answered, so that an upstream is not contacted for a body that there is no room for.
func TestDeclaredBytesAreReservedFirst(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{modev3.ProcessingMode_STREAMED, modev3.ProcessingMode_FULL_DUPLEX_STREAMED} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t, func(c *config.Config) { c.Bytes.Queue.CalmWait = 100 * time.Millisecond })
			hold, _, _ := r.bytes.Acquire(budget.Request{Key: "other", Bytes: 4 * mib})
			s := r.open()
			s.send(rh(announce(mode), false, "content-length", "300000"))
			s.refused(503, "queue_timeout")
			hold.Release()
			s = r.open()
			s.send(rh(announce(mode), false, "content-length", "300000"))
			s.wants("RH")
			if b := r.bytes.Snapshot().InflightBytes; b != 300_000 {
				t.Errorf("%d bytes reserved when the headers are answered, want the declared 300000", b)
			}
			s.finish()
		})
	}
}

// TestNothingIsHeldForALaneThatHeadersDecide: where the headers are all that the decision needs nothing is forwarded before
// it, in any mode, and so no bytes are held while the lane is waited for.
func TestNothingIsHeldForALaneThatHeadersDecide(t *testing.T) {
	for name, p := range map[string]*extprocv3.ProtocolConfiguration{
		"early": early, "streamed": announce(modev3.ProcessingMode_STREAMED), "full duplex": announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, enforce(100))
			var taken adaptive.Permit
			if state := r.lanes.Controller("chat").Acquire(&taken, adaptive.Request{Cost: 100}); state == adaptive.Waiting {
				t.Fatal("the lane cannot be taken")
			}
			s := r.open()
			s.send(rh(p, false, ":method", "POST", "content-type", "application/grpc", "content-length", "300000"))
			if !eventually(func() bool { return r.lanes.Snapshot()["chat"].QueuedCount == 1 }) {
				t.Fatal("it does not wait for the lane")
			}
			if b := r.bytes.Snapshot().InflightBytes; b != 0 {
				t.Errorf("%d bytes reserved during the wait for the lane, want 0", b)
			}
			taken.Done(adaptive.OK)
			s.wants("RH")
			if b := r.bytes.Snapshot().InflightBytes; b != 300_000 {
				t.Errorf("%d bytes reserved after it, want 300000", b)
			}
			s.finish()
		})
	}
}
