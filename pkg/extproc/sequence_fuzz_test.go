package extproc

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// FuzzSequences plays message sequences that no Envoy need send, on three exchanges at once that compete for one place
// and for a small budget. Whatever comes, in whatever order: each message is answered by at most one reply of its own
// type and in its order, a refusal is the last thing sent, a full-duplex body comes back byte for byte, the stream ends once
// the client has closed it, and nothing stays in flight, queued or reserved.
func FuzzSequences(f *testing.F) {
	_, stop := signal.NotifyContext(context.Background(), os.Interrupt) // fuzzing starts the runtime's goroutine for signals: count it as there before
	stop()
	r := newRig(f, func(c *config.Config) {
		c.Bytes.LargeBody, c.Bytes.HardMaxBody = 4<<10, 64<<10
		c.Bytes.Queue.CalmWait = 5 * time.Millisecond
		any := c.Clusters[config.AnyCluster]
		any.Lanes.Mode = adaptive.Enforce
		any.Lanes.MinLimit, any.Lanes.InitialLimit, any.Lanes.MaxLimit = 1, 1, 4
		any.Lanes.MaxWait = 5 * time.Millisecond
		any.Fanout.IssueParent = true
		c.Clusters[config.AnyCluster] = any
	})
	// One exchange in each mode to its end; trailers; an answer before the body; a second message of headers; three at once.
	for mode := range byte(len(sequenceModes)) {
		f.Add([]byte{mode, opBody, opBodyEnd, opResponse, opResponseBody, opResponseEnd, opClose})
		f.Add([]byte{mode, opBody, opTrailers, opResponse, opResponseTrailers})
		f.Add([]byte{mode, opResponse, opBody, opBodyEnd, opResponseEnd})
		f.Add([]byte{mode, opResponseBody, opBodyEnd, opResponseEnd})
		f.Add([]byte{mode, opBody, opHeaders, opHeaders, opNothing, opFailure})
		f.Add([]byte{mode, opBigBody, opBigBody, opBigBody, opBodyEnd, next | opBigBody, next | opBodyEnd, 2*next | opBigBody, 2*next | opBodyEnd, opResponse, opCancel})
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) == 0 || len(program) > 200 {
			return
		}
		r.t = t
		setting, program := program[0], program[1:]
		var players [3]player
		for i := range players {
			players[i].start(t, r, setting)
		}
		for _, op := range program {
			players[int(op/next)%len(players)].play(op % next)
		}
		for i := range players {
			players[i].finish()
		}
		r.settled()
	})
}

// The operations of a program: a byte is the operation, plus next for each exchange that is passed over.
const (
	opBody byte = iota
	opBodyEnd
	opBigBody
	opTrailers
	opResponse
	opFailure
	opResponseBody
	opResponseEnd
	opResponseTrailers
	opHeaders
	opNothing
	opClose
	opCancel
	opJSON
	next byte = 16
)

var sequenceModes = []*extprocv3.ProtocolConfiguration{
	nil, early, announce(modev3.ProcessingMode_STREAMED), announce(modev3.ProcessingMode_BUFFERED),
	announce(modev3.ProcessingMode_BUFFERED_PARTIAL), announce(modev3.ProcessingMode_FULL_DUPLEX_STREAMED), announce(modev3.ProcessingMode_NONE),
}

// player is one exchange of a program: what it sent, and what came back.
type player struct {
	t       *testing.T
	stream  extprocv3.ExternalProcessor_ProcessClient
	cancel  context.CancelFunc
	duplex  bool
	closed  bool
	aborted bool
	sent    []string // kinds, in order
	body    strings.Builder
	done    chan struct{}

	mu      sync.Mutex
	replies []*extprocv3.ProcessingResponse
	err     error
}

func (p *player) start(t *testing.T, r *rig, setting byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	s, err := r.client.Process(ctx)
	if err != nil {
		t.Fatalf("open a stream: %v", err)
	}
	protocol := sequenceModes[int(setting)%len(sequenceModes)]
	p.t, p.stream, p.cancel, p.done = t, s, cancel, make(chan struct{})
	p.duplex = protocol.GetRequestBodyMode() == modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	go func() {
		defer close(p.done)
		for {
			a, err := s.Recv()
			p.mu.Lock()
			if err != nil {
				p.err = err
				p.mu.Unlock()
				return
			}
			p.replies = append(p.replies, a)
			p.mu.Unlock()
		}
	}()
	headers := []string{":method", "POST", ":path", "/v1/chat/completions", "x-tenant-id", strconv.Itoa(int(setting) % 3)}
	if setting&64 != 0 {
		headers = append(headers, "content-length", "20000")
	}
	p.send(rh(protocol, setting&128 != 0, headers...), "RH")
}

func (p *player) send(m *extprocv3.ProcessingRequest, kind string) {
	if p.closed || p.aborted {
		return
	}
	if err := p.stream.Send(m); err != nil {
		return // the server has ended the stream; what it said is checked at the end
	}
	if kind != "" {
		p.sent = append(p.sent, kind)
		p.body.Write(m.GetRequestBody().GetBody())
	}
}

func (p *player) play(op byte) {
	switch op {
	case opBody:
		p.send(rb("{\"messages\":[", false), "RB")
	case opBodyEnd:
		p.send(rb("1]}", true), "RB")
	case opBigBody:
		p.send(rb(bytesOf(10_000), false), "RB")
	case opTrailers:
		p.send(rt(), "RT")
	case opResponse:
		p.send(sh("200", false), "SH")
	case opFailure:
		p.send(sh("429", true, "retry-after", "1"), "SH")
	case opResponseBody:
		p.send(sb("token", false), "SB")
	case opResponseEnd:
		p.send(sb("", true), "SB")
	case opResponseTrailers:
		p.send(st(), "ST")
	case opHeaders:
		p.send(rh(nil, false), "RH")
	case opNothing:
		p.send(&extprocv3.ProcessingRequest{}, "")
	case opJSON:
		p.send(rb(`{"stream":true,"n":1}`, false), "RB")
	case opClose:
		if !p.closed && !p.aborted {
			p.closed = true
			_ = p.stream.CloseSend()
		}
	case opCancel:
		p.aborted = true
		p.cancel()
	}
}

func (p *player) finish() {
	p.t.Helper()
	p.play(opClose)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.t.Errorf("the stream has not ended 10 s after its client closed it; sent %v, got %v", p.sent, p.kinds())
		p.cancel()
		<-p.done
	}
	p.cancel()
	p.check()
}

func (p *player) kinds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, a := range p.replies {
		all = append(all, kind(a))
	}
	return all
}

func (p *player) check() {
	p.t.Helper()
	expected := slices.Clone(p.sent)
	got := p.kinds()
	var echoed strings.Builder
	for i, k := range got {
		echoed.Write(p.replies[i].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
		if k == "immediate" {
			if i != len(got)-1 {
				p.t.Errorf("a refusal is reply %d of %v; want it last; sent %v", i+1, got, p.sent)
			}
			break
		}
		if len(expected) == 0 || expected[0] != k {
			p.t.Errorf("reply %d of %v is %s; sent %v", i+1, got, k, p.sent)
			return
		}
		expected = expected[1:]
	}
	if p.duplex && !strings.HasPrefix(p.body.String(), echoed.String()) {
		p.t.Errorf("a full-duplex body of %d bytes came back as other %d bytes; sent %v, got %v", p.body.Len(), echoed.Len(), p.sent, got)
	}
	if code := status.Code(p.err); p.err != io.EOF && code != codes.Canceled && !errors.Is(p.err, context.Canceled) {
		p.t.Errorf("the stream ended with %v; sent %v, got %v", p.err, p.sent, got)
	}
}
