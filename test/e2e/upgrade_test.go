package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"golang.org/x/net/http2"

	"github.com/headgate/headgate/internal/stack"
)

// TestWebSocketPassesAtOnce: 101 without waiting for a body, 3 MiB of frames beyond a limit of 1 MiB, nothing charged
// for them, and the exchange is held as long as the socket.
func TestWebSocketPassesAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}\ndecision: {uploadIdle: 30s, maxWait: 60s}", Envoy: []func(*stack.Bootstrap) error{
				func(b *stack.Bootstrap) error { return b.UseMode(mode) },
			}})
			began := time.Now()
			ws, _, err := websocket.Dial(t.Context(), s.Envoy.URL()+"/ws", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ws.CloseNow()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("101 after %v, want at once", took)
			}
			ws.SetReadLimit(2 * mebibyte)
			for i := range 6 { // 3 MiB
				message := bytes.Repeat([]byte{byte(i)}, mebibyte/2)
				if err := ws.Write(t.Context(), websocket.MessageBinary, message); err != nil {
					t.Fatal(err)
				}
				if _, got, err := ws.Read(t.Context()); err != nil || !bytes.Equal(got, message) {
					t.Fatalf("frame %d came back with %d bytes (%v), want the 512 KiB sent", i, len(got), err)
				}
			}
			h := health(t, s)
			lanes := h.AdaptiveAdmission["default"]
			if h.Exchanges.InFlight != 1 || h.ChatAdmission.InflightBytes != 0 || lanes.ShortLatencyEWMA != 0 || lanes.ActiveCount != 1 {
				t.Errorf("with an open socket: %d exchanges, %d bytes reserved, latency %v, %d in the lane, want 1, none, no sample and 1",
					h.Exchanges.InFlight, h.ChatAdmission.InflightBytes, lanes.ShortLatencyEWMA, lanes.ActiveCount)
			}
			if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
				t.Errorf("close the socket: %v", err)
			}
		})
	}
}

// TestWebSocketOverHTTP2 is the same through extended CONNECT (RFC 8441).
func TestWebSocketOverHTTP2(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}", Envoy: []func(*stack.Bootstrap) error{
		func(b *stack.Bootstrap) error { return b.HTTP1Only("default") },
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	frames, feed := io.Pipe()
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, s.Envoy.URL()+"/ws", frames)
	if err != nil {
		t.Fatal(err)
	}
	r.Header[":protocol"] = []string{"websocket"}
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	connect := &http2.Transport{AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address) // without TLS
		}}
	defer connect.CloseIdleConnections()
	answer, err := connect.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		t.Fatalf("extended CONNECT = %d, want 200", answer.StatusCode)
	}
	const frame = 60_000
	header := []byte{0x82, 0xfe, frame >> 8, frame & 0xff, 0, 0, 0, 0} // binary, masked with zeros
	echo := make([]byte, 4+frame)
	for i := range 52 { // 3 MiB
		message := append(bytes.Clone(header), bytes.Repeat([]byte{byte(i)}, frame)...)
		go func() { _, _ = feed.Write(message) }() // the echo tells
		if _, err := io.ReadFull(answer.Body, echo); err != nil || !bytes.Equal(echo[4:], message[8:]) {
			t.Fatalf("frame %d did not come back as sent: %v", i, err)
		}
	}
	cancel() // the client leaves
}

// TestUpgradeWithABody: requests that ask for an upgrade and have a body get an answer, and nothing stays reserved.
func TestUpgradeWithABody(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {largeBody: 4, uploadTimeout: 2s}"}) // Envoy lets the body of an upgrade never end
	for _, upgrade := range []string{"foo", "websocket"} {
		raw := dialRaw(t, s)
		raw.say(t, "POST /odd HTTP/1.1\nHost: t\nConnection: Upgrade\nUpgrade: %s\nContent-Length: 9\n\n123456789", upgrade)
		began := time.Now()
		got, err := raw.answer("POST")
		if took := time.Since(began); err != nil || got.status == 504 || took > 10*time.Second {
			t.Errorf("POST with Upgrade: %s = %d after %v (%v), want some answer soon", upgrade, got.status, took, err)
		}
		raw.Close()
		idle(t.Context(), t, s)
	}
}

// TestUpgradeThatTheUpstreamDoesNotTake is answered like any other request.
func TestUpgradeThatTheUpstreamDoesNotTake(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	raw := dialRaw(t, s)
	raw.say(t, "GET /no-socket HTTP/1.1\nHost: t\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n")
	if got := raw.mustAnswer(t, "GET"); got.status != 200 {
		t.Errorf("an upgrade that the upstream answers with the echo = %d, want 200", got.status)
	}
}

// TestExpectContinue: Envoy asks for the body by itself, and a client that has not sent it yet still gets the refusal.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}"})
	raw := dialRaw(t, s)
	raw.say(t, "POST /large HTTP/1.1\nHost: t\nExpect: 100-continue\nContent-Length: %d\n\n", 5*mebibyte)
	got := raw.mustAnswer(t, "POST")
	if got.status == http.StatusContinue {
		got = raw.mustAnswer(t, "POST") // Envoy 1.40 says so before it asks us
	}
	refusedAs(t, "5 MiB announced with Expect", got, nil, 413, "payload_too_large")
	if n := s.Upstream.Counts().Seen; n != 0 {
		t.Errorf("the upstream saw %d requests, want 0", n)
	}
	raw = dialRaw(t, s)
	raw.say(t, "POST /small HTTP/1.1\nHost: t\nExpect: 100-continue\nContent-Length: 5\n\n")
	if got := raw.mustAnswer(t, "POST"); got.status != http.StatusContinue {
		t.Fatalf("Expect with 5 bytes = %d, want 100", got.status)
	}
	raw.say(t, "hello")
	got = raw.mustAnswer(t, "POST")
	passed(t, "5 bytes after 100", got, nil, 5, digest(strings.NewReader("hello")))
}

// TestBodylessRequestsAreNotHeldUp: requests without a body worth waiting for are decided at once, whatever they say.
func TestBodylessRequestsAreNotHeldUp(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "decision: {uploadIdle: 50s, maxWait: 59s}"}) // none of these may wait for it
	for what, text := range map[string]string{
		"GET":                         "GET /a HTTP/1.1\nHost: t\n\n",
		"POST with a length of 0":     "POST /a HTTP/1.1\nHost: t\nContent-Length: 0\n\n",
		"OPTIONS with a length of 0":  "OPTIONS /a HTTP/1.1\nHost: t\nContent-Length: 0\n\n",
		"POST of no chunks":           "POST /a HTTP/1.1\nHost: t\nTransfer-Encoding: chunked\n\n0\n\n",
		"DELETE":                      "DELETE /a HTTP/1.1\nHost: t\n\n",
		"GET with a body that is odd": "GET /a HTTP/1.1\nHost: t\nContent-Length: 2\n\n{}",
	} {
		began := time.Now()
		raw := dialRaw(t, s)
		raw.say(t, "%s", text)
		got, err := raw.answer(strings.Fields(text)[0])
		var e stack.Echo
		if err == nil {
			err = json.Unmarshal([]byte(got.body), &e)
		}
		if took := time.Since(began); err != nil || got.status != 200 || took > 20*time.Second {
			t.Errorf("%s = %d after %v (%v), want 200 at once", what, got.status, took, err)
		}
	}
}

// TestTrailersEndTheBody: a body that ends with trailers has no last chunk that says so, whether Envoy sends us the
// trailers or not. Envoy hands trailers over only once the chunks are answered, so an early decision waits for the
// pause in the upload.
func TestTrailersEndTheBody(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]extprocv3.ProcessingMode_HeaderSendMode{"SEND": extprocv3.ProcessingMode_SEND, "SKIP": extprocv3.ProcessingMode_SKIP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: "bytes: {largeBody: 4}", Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
				return b.Processor(func(p *extprocv3.ExternalProcessor) { p.ProcessingMode.RequestTrailerMode = mode })
			}}})
			raw := dialRaw(t, s)
			raw.say(t, "POST /trailed HTTP/1.1\nHost: t\nContent-Type: application/json\nTransfer-Encoding: chunked\n\n5\n[1,2]\n0\nx-end: 1\n\n")
			got := raw.mustAnswer(t, "POST")
			passed(t, "5 bytes and a trailer", got, nil, 5, digest(strings.NewReader("[1,2]")))
		})
	}
}
