package stack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// These tests hold what Envoy does that the sidecar's design rests on. When one fails with a newer Envoy, the design
// has to be looked at again, not only the test.

type exchange = extprocv3.ExternalProcessor_ProcessServer

// scripted is a processor that does the same for every exchange.
func scripted(script func(exchange) error) *stub { return &stub{script: script} }

// answerAll answers everything that is still to come.
func answerAll(s exchange) error {
	plain := &stub{}
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(plain.answer(in)); err != nil {
			return err
		}
	}
}

var passHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}

var passBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}}

var tooLarge = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
	Status: &typev3.HttpStatus{Code: typev3.StatusCode_PayloadTooLarge}, Body: []byte("too large"),
}}}

func TestFactStreamLifetime(t *testing.T) {
	t.Parallel()
	const send, skip = filterv3.ProcessingMode_SEND, filterv3.ProcessingMode_SKIP
	for name, tc := range map[string]struct {
		method            string
		early             bool // bodies without waiting for the headers' reply
		headers, trailers filterv3.ProcessingMode_HeaderSendMode
		toTheEnd          bool
	}{
		"POST, nothing of the response: to the end":                  {"POST", false, skip, skip, true},
		"POST, early bodies, nothing of the response: ends at once":  {"POST", true, skip, skip, false},
		"GET, nothing of the response: ends at once":                 {"GET", true, skip, skip, false},
		"GET, response headers: ends there":                          {"GET", true, send, skip, false},
		"GET, response trailers: to the end":                         {"GET", true, skip, send, true},
		"GET, response headers and trailers: to the end":             {"GET", true, send, send, true},
		"POST, early bodies, response trailers: to the end":          {"POST", true, skip, send, true},
		"POST, early bodies, response headers, trailers: to the end": {"POST", true, send, send, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(b *Bootstrap) error {
				return b.Processor(func(p *filterv3.ExternalProcessor) {
					p.SendBodyWithoutWaitingForHeaderResponse = tc.early
					p.ProcessingMode.ResponseHeaderMode, p.ProcessingMode.ResponseTrailerMode = tc.headers, tc.trailers
				})
			})
			var body io.Reader
			if tc.method == "POST" {
				body = strings.NewReader("{}")
			}
			r, err := http.NewRequestWithContext(t.Context(), tc.method, b.URL()+"/drip?n=3&ms=150", body)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client(t, false).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if open := b.stub.active() == 1; open != tc.toTheEnd {
				t.Errorf("after the first event the exchange is open: %v, want %v", open, tc.toTheEnd)
			}
		})
	}
}

func TestFactUpstreamIsNotContactedBeforeTheHeadersReply(t *testing.T) {
	t.Parallel()
	var b *bench
	seen := make(chan int64, 1)
	b = newBenchWith(t, scripted(func(s exchange) error {
		for { // headers and the whole body, without an answer
			in, err := s.Recv()
			if err != nil {
				return err
			}
			if in.GetRequestBody().GetEndOfStream() {
				break
			}
		}
		seen <- b.upstream.Counts().Seen
		if err := errors.Join(s.Send(passHeaders), s.Send(passBody), s.Send(passBody)); err != nil {
			return err
		}
		return answerAll(s)
	}), nil)
	b.do(t, client(t, false), "POST", "/x", strings.NewReader("hello"))
	if n := <-seen; n != 0 {
		t.Errorf("the upstream saw %d requests while the headers reply was held, want 0", n)
	}
}

func TestFactMessageTimeoutRestartsWithEveryMessage(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, scripted(func(s exchange) error {
		chunks := 0
		for {
			in, err := s.Recv()
			if err != nil {
				return err
			}
			if in.GetRequestBody() != nil {
				chunks++
			}
			if in.GetRequestBody().GetEndOfStream() {
				break
			}
		}
		if err := s.Send(passHeaders); err != nil {
			return err
		}
		for range chunks {
			if err := s.Send(passBody); err != nil {
				return err
			}
		}
		return answerAll(s)
	}), []string{"message_timeouts"}, func(b *Bootstrap) error { return b.MessageTimeout(400 * time.Millisecond) })

	trickle := func(pauses ...time.Duration) io.Reader {
		r, w := io.Pipe()
		go func() {
			defer w.Close()
			for _, pause := range pauses {
				time.Sleep(pause)
				if _, err := w.Write([]byte("chunk")); err != nil {
					return
				}
			}
		}()
		return r
	}
	const short = 100 * time.Millisecond
	if answer, _ := b.do(t, client(t, false), "POST", "/x", trickle(short, short, short, short, short, short, short, short)); answer.StatusCode != 200 {
		t.Errorf("an upload of 800 ms in steps of 100 ms, time-out 400 ms, headers held to its end = %d, want 200", answer.StatusCode)
	}
	if answer, _ := b.do(t, client(t, false), "POST", "/x", trickle(short, 1500*time.Millisecond)); answer.StatusCode != 504 {
		t.Errorf("an upload that pauses for 1.5 s, time-out 400 ms, headers held = %d, want 504", answer.StatusCode)
	}
}

func TestFactHowAnExchangeEndsEarly(t *testing.T) {
	t.Parallel()
	after := func(end error, answers ...*extprocv3.ProcessingResponse) func(exchange) error {
		return func(s exchange) error {
			for _, answer := range answers {
				if _, err := s.Recv(); err != nil {
					return err
				}
				if err := s.Send(answer); err != nil {
					return err
				}
			}
			if len(answers) == 0 {
				if _, err := s.Recv(); err != nil {
					return err
				}
			}
			return end
		}
	}
	for name, tc := range map[string]struct {
		script   func(exchange) error
		expected []string
		status   int
		bytes    int64
	}{
		"an error is our 503":                        {after(status.Error(codes.Internal, "broken")), []string{"streams_failed"}, 503, 0},
		"OK before the headers reply lets it pass":   {after(nil), nil, 200, 3 << 20},
		"OK after the headers reply lets it pass on": {after(nil, passHeaders), nil, 200, 3 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBenchWith(t, scripted(tc.script), tc.expected)
			answer, text := b.do(t, client(t, false), "POST", "/x", io.LimitReader(zeroes{}, 3<<20))
			var got int64
			if answer.StatusCode == 200 {
				got = decode[Echo](t, text).BodyBytes
			}
			if answer.StatusCode != tc.status || got != tc.bytes {
				t.Errorf("status %d, %d bytes at the upstream, want %d and %d", answer.StatusCode, got, tc.status, tc.bytes)
			}
		})
	}
}

func TestFactClientDisconnectIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	arrived, gone := make(chan struct{}, 1), make(chan time.Time, 1)
	b := newBenchWith(t, scripted(func(s exchange) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		arrived <- struct{}{}
		for {
			if _, err := s.Recv(); err != nil {
				gone <- time.Now()
				return nil
			}
		}
	}), nil)
	c, err := net.Dial("tcp", b.Address)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello")
	<-arrived
	left := time.Now()
	c.Close()
	if took := (<-gone).Sub(left); took > 100*time.Millisecond {
		t.Errorf("the processor learned of the disconnect after %v, want at once", took)
	}
}

func TestFactRefusalOfAGRPCRequestNeedsAStatus(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, scripted(func(s exchange) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		return s.Send(tooLarge)
	}), nil)
	conn, err := grpc.NewClient("passthrough:"+b.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := Say(t.Context(), conn, []byte("hello")); status.Code(err) != codes.Unknown {
		t.Errorf("a refusal without grpc_status = %v, want code Unknown", err)
	}
}
