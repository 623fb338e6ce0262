package stack

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

func TestEnvoyCarriesWhatTheUpstreamServes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	payload := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB
	sum := sha256.Sum256(payload)
	for _, http2 := range []bool{false, true} {
		c := client(t, http2)
		proto := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]

		answer, text := b.do(t, c, "POST", "/any/path?q=1", bytes.NewReader(payload), "x-tenant-id", "t1", "x-omniroute-lease-owner", "secret")
		e := decode[Echo](t, text)
		if answer.StatusCode != 200 || e.Method != "POST" || e.Path != "/any/path?q=1" || e.Proto != proto ||
			e.BodyBytes != int64(len(payload)) || e.ContentLength != e.BodyBytes || e.BodySHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: echo of 3 MiB = %d, %s %s, %s, %d of %d bytes, sha %s", proto, answer.StatusCode, e.Method, e.Path, e.Proto, e.BodyBytes, e.ContentLength, e.BodySHA256)
		}
		if e.Headers.Get("x-tenant-id") != "t1" || e.Headers.Get("x-omniroute-lease-owner") != "" {
			t.Errorf("%s: headers %v, want x-tenant-id untouched and the owner removed", proto, e.Headers)
		}

		answer, text = b.do(t, c, "POST", "/trailers", io.MultiReader(strings.NewReader("hello"))) // length unknown
		if e := decode[Echo](t, text); e.BodyBytes != 5 || answer.Trailer.Get("X-Body-Sha256") != e.BodySHA256 {
			t.Errorf("%s: trailers %v after %d bytes, want the body's SHA-256", proto, answer.Trailer, e.BodyBytes)
		}
		if answer, _ := b.do(t, c, "GET", "/status/418?retry-after=3", nil); answer.StatusCode != 418 || answer.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: /status/418 = %d, Retry-After %q", proto, answer.StatusCode, answer.Header.Get("Retry-After"))
		}
		if answer, text := b.do(t, c, "POST", "/early", bytes.NewReader(payload)); answer.StatusCode != 200 || !strings.Contains(string(text), "early") {
			t.Errorf("%s: /early = %d %s", proto, answer.StatusCode, text)
		}
		_, text = b.do(t, c, "POST", "/v1/chat/completions?ms=1", strings.NewReader(`{"model":"m","messages":[],"stream":true}`))
		if n := strings.Count(string(text), "data: "); n != 7 || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			t.Errorf("%s: streamed completion has %d events, want 5 words, stop and [DONE]:\n%s", proto, n, text)
		}
		_, text = b.do(t, c, "POST", "/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[]}`))
		if !strings.Contains(string(text), "All quiet at the headgate.") {
			t.Errorf("%s: completion = %s", proto, text)
		}
	}
	want := Counts{Seen: 2, Completed: 2, BodyBytes: 2 * int64(len(payload))}
	if got := b.upstream.CountsOf("/any/path"); got != want {
		t.Errorf("upstream counted %+v, want %+v", got, want)
	}
}

func TestEnvoyCarriesGRPCAndWebSockets(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn, err := grpc.NewClient("passthrough:"+b.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if out, err := Say(t.Context(), conn, []byte("hello")); err != nil || string(out) != "hello" {
		t.Errorf("Say = %q, %v, want the message back", out, err)
	}
	chat, err := Chat(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		if err := chat.Send(&Payload{Value: []byte(word)}); err != nil {
			t.Fatal(err)
		}
		if m, err := chat.Recv(); err != nil || string(m.GetValue()) != word {
			t.Fatalf("Chat answered %q, %v, want %q while the stream is open", m.GetValue(), err, word)
		}
	}
	if err := chat.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := chat.Recv(); err != io.EOF {
		t.Errorf("Chat ended with %v, want EOF", err)
	}

	ws, _, err := websocket.Dial(t.Context(), b.URL()+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(4 << 20)
	big := bytes.Repeat([]byte{7}, 3<<20)
	if err := ws.Write(t.Context(), websocket.MessageBinary, big); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(t.Context()); err != nil || !bytes.Equal(got, big) {
		t.Errorf("WebSocket sent %d bytes back, %v, want the 3 MiB sent", len(got), err)
	}
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("close the WebSocket: %v", err)
	}
}

func TestRouteToALeasedConnectionNeedsTheProcessor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := client(t, false)
	requests := func(cluster string) int64 {
		all, err := b.Stats(t.Context(), "cluster."+cluster+".upstream_rq_total")
		if err != nil {
			t.Fatal(err)
		}
		return all["cluster."+cluster+".upstream_rq_total"]
	}

	// A client that names the connection itself ends at the cluster that asks for a lease.
	b.do(t, c, "POST", "/leased/x", strings.NewReader("x"), "x-omniroute-connection", "acct-1")
	if acct, leased := requests("acct-1"), requests("leased"); acct != 0 || leased != 1 {
		t.Errorf("forged header: acct-1 had %d requests and leased %d, want 0 and 1", acct, leased)
	}
	// The processor binds to acct-2: with a body, without, and over the client's own wish.
	for _, body := range []string{"body", ""} {
		_, text := b.do(t, c, "POST", "/leased/x", strings.NewReader(body), "x-omniroute-connection", "acct-1", "x-test-connection", "acct-2")
		e := decode[Echo](t, text)
		if got := e.Headers.Values("x-omniroute-connection"); !cmp.Equal(got, []string{"acct-2"}) || e.Headers.Get("x-other") != "" {
			t.Errorf("body %q: the upstream saw connection %q and x-other %q, want acct-2 and none", body, got, e.Headers.Get("x-other"))
		}
	}
	if n := requests("acct-2"); n != 2 {
		t.Errorf("acct-2 had %d requests, want 2", n)
	}
	if got, want := b.stub.seen(), []string{"leased", "leased", "leased"}; !cmp.Equal(got, want) {
		t.Errorf("route clusters seen by the processor: %q, want %q", got, want)
	}
}

func TestRoutesOfTheDemo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := client(t, false)
	for _, path := range []string{"/v1/session-leases", "/api/v1/session-leases", "/v1/admission/probe"} {
		if answer, text := b.do(t, c, "POST", path, strings.NewReader("{}")); answer.StatusCode != http.StatusTeapot {
			t.Errorf("%s = %d %s, want the API's answer", path, answer.StatusCode, text)
		}
	}
	if seen := b.stub.seen(); len(seen) != 0 {
		t.Errorf("the processor was called for %q, want never for the API", seen)
	}
	for _, path := range []string{"/v1/chat/completions?x=1", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/models", "/leased/a", "/leased"} {
		b.do(t, c, "POST", path, strings.NewReader("{}"))
	}
	want := []string{"chat", "chat", "chat", "chat", "default", "leased", "default"}
	if got := b.stub.seen(); !cmp.Equal(got, want) {
		t.Errorf("route clusters %q, want %q", got, want)
	}
}

func TestRefusalAndAccessLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	answer, text := b.do(t, client(t, false), "POST", "/refused?key=secret", strings.NewReader("x"), "x-test-refuse", "1")
	if answer.StatusCode != 503 || answer.Header.Get("Retry-After") != "7" || answer.Header.Get("X-Headgate-Reason") != "test" ||
		answer.Header.Get("Content-Type") != "application/json" || answer.Header.Get("X-Other") != "" || string(text) != `{"error":{}}` {
		t.Errorf("refusal = %d %v %s, want our four headers and no other", answer.StatusCode, answer.Header, text)
	}
	if seen := b.upstream.Counts().Seen; seen != 0 {
		t.Errorf("the upstream saw %d requests, want 0", seen)
	}
	var line string
	eventually(t, "an access log line", func() bool {
		log, _ := os.ReadFile(b.log)
		line = string(log)
		return strings.HasSuffix(line, "\n")
	})
	for _, want := range []string{" POST /refused status=503 ", "decision=refused reason=test bytes=12345678 cost=3 lane=lane_0 wait_ms=0 "} {
		if !strings.Contains(line, want) {
			t.Errorf("access log lacks %q: %s", want, line)
		}
	}
	if strings.Contains(line, "secret") {
		t.Errorf("access log shows the query: %s", line)
	}
}

func TestExchangeIsOpenToTheEndOfTheResponse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, method := range []string{"GET", "POST"} {
		r, err := http.NewRequestWithContext(t.Context(), method, b.URL()+"/drip?n=4&ms=100", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(answer.Body)
		for i := range 3 {
			for range 2 {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			if open := b.stub.active(); open != 1 {
				t.Errorf("%s: %d exchanges open after event %d, want 1", method, open, i)
			}
		}
		_, _ = io.Copy(io.Discard, lines)
		answer.Body.Close()
		eventually(t, "the exchange to end", func() bool { return b.stub.active() == 0 })
	}
}

func TestBootstrapEditsReachEnvoy(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{ModeEarly, ModeStreamed, ModeFullDuplex, ModeBuffered, ModeBufferedPartial, ModeNone} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c, err := config.Load("demo.yaml", nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := NewBootstrap(c, envoyconf.Options{})
			if err != nil {
				t.Fatal(err)
			}
			b.FreePorts()
			b.BufferLimit(64 << 20)
			for _, err := range []error{b.UseMode(mode), b.MessageTimeout(300 * time.Millisecond), b.FailOpen(), b.HTTP1Only("default")} {
				if err != nil {
					t.Fatal(err)
				}
			}
			text, err := b.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			e, err := StartEnvoy(t.Context(), EnvoyOptions{Bootstrap: text})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Stop()
			dump, err := e.get(t.Context(), "/config_dump?resource=static_listeners")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`"message_timeout": "0.300s"`, `"failure_mode_allow": true`, `"per_connection_buffer_limit_bytes": 67108864`} {
				if !strings.Contains(dump, want) {
					t.Errorf("Envoy's configuration lacks %s:\n%s", want, dump)
				}
			}
		})
	}
}

func TestStartEnvoyReportsWhyItFailed(t *testing.T) {
	t.Parallel()
	_, err := StartEnvoy(t.Context(), EnvoyOptions{Bootstrap: []byte("static_resources: {listenerz: []}")})
	if err == nil || !strings.Contains(err.Error(), "listenerz") {
		t.Errorf("StartEnvoy = %v, want an error with Envoy's own words", err)
	}
}
