package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

func TestFactHeldUploadIsBounded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ http2, answerHeaders bool }{
		"HTTP1, headers held": {false, false},
		"HTTP1, bodies held":  {false, true},
		"HTTP2, headers held": {true, false},
		"HTTP2, bodies held":  {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var arrived atomic.Int64
			b := newBenchWith(t, scripted(func(s exchange) error {
				for {
					in, err := s.Recv()
					if err != nil {
						return err
					}
					arrived.Add(int64(len(in.GetRequestBody().GetBody())))
					if in.GetRequestHeaders() != nil && tc.answerHeaders {
						if err := s.Send(passHeaders); err != nil {
							return err
						}
					}
				}
			}), nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, "POST", b.URL()+"/x", bytes.NewReader(make([]byte, 32<<20)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client(t, tc.http2).Do(r); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("the held request ended with %v, want the client's own deadline", err)
			}
			if n := arrived.Load(); n < 256<<10 || n > 4<<20 {
				t.Errorf("%d bytes arrived while answers were held, want at least the window of 256 KiB and at most about the buffer limit of 1 MiB", n)
			}
		})
	}
}

func TestFactRefusalInMidBody(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, scripted(func(s exchange) error {
		in, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send((&stub{}).answer(in)); err != nil {
			return err
		}
		for n := 0; n < 1<<20; {
			in, err := s.Recv()
			if err != nil {
				return err
			}
			if n += len(in.GetRequestBody().GetBody()); n < 1<<20 {
				if err := s.Send(passBody); err != nil {
					return err
				}
			}
		}
		if err := s.Send(tooLarge); err != nil {
			return err
		}
		for { // what was on its way may still arrive, and wants no answer
			if _, err := s.Recv(); err != nil {
				return nil
			}
		}
	}), nil)
	for _, http2 := range []bool{false, true} {
		answer, text := b.do(t, client(t, http2), "POST", "/x", io.LimitReader(zeroes{}, 16<<20))
		if answer.StatusCode != 413 || string(text) != "too large" {
			t.Errorf("HTTP/2 %v: %d %q, want our 413", http2, answer.StatusCode, text)
		}
	}
	eventually(t, "the upstream to give up", func() bool { return b.upstream.Counts().Active == 0 })
	if got := b.upstream.Counts(); got.Seen != 2 || got.Completed != 0 {
		t.Errorf("the upstream counted %+v, want two requests and no complete body", got)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestFactWhatEndsABodyWithTrailers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode           filterv3.ProcessingMode_HeaderSendMode
		enabled        bool // in the HTTP connection manager, which drops them otherwise
		ends, trailers int64
	}{
		"trailers sent: the trailers":                  {filterv3.ProcessingMode_SEND, true, 0, 1},
		"trailers not sent: nothing":                   {filterv3.ProcessingMode_SKIP, true, 0, 0},
		"trailers dropped: a chunk with end_of_stream": {filterv3.ProcessingMode_SKIP, false, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ends, trailers atomic.Int64
			b := newBenchWith(t, scripted(func(s exchange) error {
				plain := &stub{}
				for {
					in, err := s.Recv()
					if err != nil {
						return nil
					}
					if in.GetRequestBody().GetEndOfStream() {
						ends.Add(1)
					}
					if in.GetRequestTrailers() != nil {
						trailers.Add(1)
					}
					if err := s.Send(plain.answer(in)); err != nil {
						return err
					}
				}
			}), nil, func(b *Bootstrap) error {
				return errors.Join(
					b.Processor(func(p *filterv3.ExternalProcessor) { p.ProcessingMode.RequestTrailerMode = tc.mode }),
					b.Connections(func(m *hcmv3.HttpConnectionManager) error {
						m.HttpProtocolOptions.EnableTrailers = tc.enabled
						return nil
					}))
			})
			c, err := net.Dial("tcp", b.Address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprint(c, "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-t: 1\r\n\r\n")
			text, err := io.ReadAll(c)
			if err != nil || !bytes.HasPrefix(text, []byte("HTTP/1.1 200 ")) {
				t.Errorf("answer %q, %v, want a 200", text, err)
			}
			if ends.Load() != tc.ends || trailers.Load() != tc.trailers {
				t.Errorf("%d chunks with end_of_stream and %d trailers, want %d and %d", ends.Load(), trailers.Load(), tc.ends, tc.trailers)
			}
		})
	}
}
