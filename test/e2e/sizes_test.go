package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// framings runs a test for a declared and an undeclared length, over HTTP/1.1 and over HTTP/2.
func framings(t *testing.T, test func(t *testing.T, c *http.Client, http2, declared bool)) {
	t.Helper()
	for _, http2 := range []bool{false, true} {
		for _, declared := range []bool{true, false} {
			name := map[bool]string{false: "HTTP1", true: "HTTP2"}[http2] + map[bool]string{true: "Declared", false: "Undeclared"}[declared]
			t.Run(name, func(t *testing.T) { test(t, client(t, http2), http2, declared) })
		}
	}
}

// digest is the echo's form of a body's SHA-256.
func digest(body io.Reader) string {
	sum := sha256.New()
	_, _ = io.Copy(sum, body) // neither fails
	return hex.EncodeToString(sum.Sum(nil))
}

// passed checks that a body reached the upstream whole.
func passed(t *testing.T, what string, got response, err error, size int64, sum string) {
	t.Helper()
	var e stack.Echo
	if err == nil {
		err = json.Unmarshal([]byte(got.body), &e)
	}
	if err != nil || got.status != 200 || e.BodyBytes != size || e.BodySHA256 != sum {
		t.Errorf("%s = %d %q, %d bytes at the upstream, same: %t (%v), want 200 and all %d", what, got.status, got.reason(), e.BodyBytes, e.BodySHA256 == sum, err, size)
	}
}

// refusedAs checks a refusal: status, reason, a short JSON body.
func refusedAs(t *testing.T, what string, got response, err error, status int, reason string) {
	t.Helper()
	var body struct {
		Error struct{ Message, Type, Code, Reason string }
	}
	if err == nil {
		err = json.Unmarshal([]byte(got.body), &body)
	}
	if err != nil || got.status != status || got.reason() != reason || body.Error.Reason != reason || len(got.body) > 512 {
		t.Errorf("%s = %d %q %.600q (%v), want %d %q and the reason in at most 512 bytes", what, got.status, got.reason(), got.body, err, status, reason)
	}
}

func TestExactSizes(t *testing.T) {
	t.Parallel()
	const large, hardMax = 64 << 10, 1 << 20
	s := start(t, stack.Options{Overlay: "bytes: {largeBody: 64KiB, hardMaxBody: 1MiB}"})
	framings(t, func(t *testing.T, c *http.Client, http2, declared bool) {
		for i, size := range []int64{0, 1, large - 1, large, hardMax - 1, hardMax, hardMax + 1} {
			what := fmt.Sprintf("%d bytes", size)
			path := fmt.Sprintf("/%t/%t/%d", http2, declared, i)
			body := text(size)
			got, err := upload(t.Context(), s, c, http2, declared, request{path: path, body: strings.NewReader(body), length: size,
				headers: map[string]string{"content-type": "application/json"}})
			if size <= hardMax {
				passed(t, what, got, err, size, digest(strings.NewReader(body)))
				continue
			}
			refusedAs(t, what, got, err, 413, "payload_too_large")
			if n := s.Upstream.CountsOf(path); n.Completed != 0 || (declared && n.Seen != 0) {
				t.Errorf("%s: the upstream saw %d requests and %d whole ones, want none whole and, declared, none", what, n.Seen, n.Completed)
			}
		}
	})
}

// TestDefaultHardMax shows the default limit of 50 MiB to the byte.
func TestDefaultHardMax(t *testing.T) {
	t.Parallel()
	const hardMax = 50 << 20
	// The budget would follow from the machine's memory.
	s := start(t, stack.Options{Overlay: "bytes: {budget: {override: 1GiB}}"})
	sum := digest(noise(hardMax))
	framings(t, func(t *testing.T, c *http.Client, http2, declared bool) {
		got, err := upload(t.Context(), s, c, http2, declared, request{path: "/50MiB", body: noise(hardMax), length: hardMax})
		passed(t, "50 MiB", got, err, hardMax, sum)
		got, err = upload(t.Context(), s, c, http2, declared, request{path: "/more", body: noise(hardMax + 1), length: hardMax + 1})
		refusedAs(t, "50 MiB + 1", got, err, 413, "payload_too_large")
	})
	if n := s.Upstream.CountsOf("/more").Completed; n != 0 {
		t.Errorf("the upstream had %d whole bodies above the limit, want 0", n)
	}
}

// TestBodyBecomesHeavyAtLargeBody shows the threshold of the reservation to the byte, and what is charged.
func TestBodyBecomesHeavyAtLargeBody(t *testing.T) {
	t.Parallel()
	const large = 64 << 10
	s := start(t, stack.Options{Overlay: "bytes: {largeBody: 64KiB}"})
	framings(t, func(t *testing.T, c *http.Client, http2, declared bool) {
		for size, want := range map[int64]int64{large - 1: 0, large: large, large + 1: large + 1} {
			ended := make(chan error, 1)
			path := fmt.Sprintf("/%t/%t/%d", http2, declared, size)
			go func() {
				_, err := upload(t.Context(), s, c, http2, declared, request{path: path + "?ms=400", body: noise(size), length: size})
				ended <- err
			}()
			eventually(t, path+" to reach the upstream", func() bool { return s.Upstream.CountsOf(path).Completed == 1 })
			heavy := 0
			if want > 0 {
				heavy = 1
			}
			if b := health(t, s).ChatAdmission; b.InflightBytes != want || b.ActiveHeavy != heavy {
				t.Errorf("%d bytes: %d reserved by %d heavy requests, want %d by %d", size, b.InflightBytes, b.ActiveHeavy, want, heavy)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOneChunkOfAWholeConnectionBuffer shows that bodies in one message as large as a 64 MiB buffer get their verdict,
// by the limit and not by what gRPC can receive.
func TestOneChunkOfAWholeConnectionBuffer(t *testing.T) {
	t.Parallel()
	const buffer = 64 << 20
	for _, mode := range []stack.Mode{stack.ModeBuffered, stack.ModeEarly} {
		t.Run(string(mode), func(t *testing.T) {
			s := start(t, stack.Options{
				Overlay: "bytes: {hardMaxBody: 60MiB, budget: {override: 1GiB}}",
				Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
					b.BufferLimit(buffer)
					return b.UseMode(mode)
				}},
			})
			c := client(t, false)
			got, err := upload(t.Context(), s, c, false, true, request{path: "/60MiB", body: noise(60 << 20), length: 60 << 20})
			passed(t, "60 MiB", got, err, 60<<20, digest(noise(60<<20)))
			got, err = upload(t.Context(), s, c, false, false, request{path: "/64MiB", body: noise(buffer)})
			refusedAs(t, "64 MiB", got, err, 413, "payload_too_large")
		})
	}
}

// TestNoBodyIsTooLargeToBeRefused: whatever Envoy is told to buffer is one message, and gets its verdict. Where requests pass
// when the sidecar fails, a message that it could not receive would carry any body past the hard maximum.
func TestNoBodyIsTooLargeToBeRefused(t *testing.T) {
	t.Parallel()
	const buffer, size = 256 << 20, 140 << 20
	s := start(t, stack.Options{
		Overlay: "bytes: {hardMaxBody: 8MiB}",
		Envoy: []func(*stack.Bootstrap) error{(*stack.Bootstrap).FailOpen, func(b *stack.Bootstrap) error {
			b.BufferLimit(buffer)
			return b.UseMode(stack.ModeBuffered)
		}},
	})
	got, err := upload(t.Context(), s, client(t, false), false, false, request{path: "/140MiB", body: zeros(size)})
	refusedAs(t, "140 MiB", got, err, 413, "payload_too_large")
}

// TestDeclaredRefusalReachesAClientThatKeepsUploading: 50 of 50 tries, and the upstream is never contacted.
func TestDeclaredRefusalReachesAClientThatKeepsUploading(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	for i := range 50 {
		got, err := upload(t.Context(), s, nil, false, true, request{path: "/declared", body: zeros(200 << 20), length: 200 << 20})
		refusedAs(t, fmt.Sprintf("try %d of 50", i+1), got, err, 413, "payload_too_large")
		if got.header.Get("Connection") != "close" {
			t.Errorf("try %d: connection %q, want close: the client still uploads", i+1, got.header.Get("Connection"))
		}
	}
	if n := s.Upstream.Counts().Seen; n != 0 {
		t.Errorf("the upstream saw %d requests, want 0", n)
	}
}

// TestRefusalInMidBody: the upstream never gets a whole request, the client gets the refusal and nothing of its own.
func TestRefusalInMidBody(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}"})
	secret := strings.Repeat("do-not-repeat-me ", 3<<20/17)
	for _, http2 := range []bool{false, true} {
		got, err := upload(t.Context(), s, client(t, http2), http2, false, request{path: "/mid", body: strings.NewReader(secret),
			headers: map[string]string{"x-client": "do-not-repeat-me"}})
		refusedAs(t, "3 MB", got, err, 413, "payload_too_large")
		if strings.Contains(fmt.Sprint(got.header, got.body), "do-not-repeat") {
			t.Errorf("the refusal repeats the request: %v %s", got.header, got.body)
		}
		if !http2 && got.header.Get("Connection") != "close" {
			t.Errorf("connection %q, want close", got.header.Get("Connection"))
		}
	}
	if n := s.Upstream.CountsOf("/mid").Completed; n != 0 {
		t.Errorf("the upstream had %d whole bodies, want 0", n)
	}
}

// TestRefusedHEADLeavesTheConnectionClean: a refusal has a body, the answer to HEAD must not.
func TestRefusedHEADLeavesTheConnectionClean(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: oneAtATime("default", "1ms")})
	busy := dialRaw(t, s)
	busy.say(t, "GET /drip?n=600&ms=100 HTTP/1.1\nHost: t\n\n")
	eventually(t, "the lane to be full", func() bool { return s.Upstream.CountsOf("/drip").Active == 1 })
	raw := dialRaw(t, s)
	for range 3 {
		raw.say(t, "HEAD /head HTTP/1.1\nHost: t\n\n")
		got := raw.mustAnswer(t, "HEAD")
		if got.status != 503 || got.reason() != "admission_deadline" || !slices.Contains([]string{"1", "2"}, got.header.Get("Retry-After")) || raw.in.Buffered() != 0 {
			t.Errorf("HEAD = %d %q, Retry-After %q, %d stray bytes, want 503 admission_deadline, 1 or 2 and none", got.status, got.reason(), got.header.Get("Retry-After"), raw.in.Buffered())
		}
	}
	busy.Close()
}

// TestCompressedBodiesCountAsSent: 10 KB on the wire are 10 KB, whatever they unpack to.
func TestCompressedBodiesCountAsSent(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 64KiB}", Run: stack.EnvoyOptions{AccessLog: log.file}})
	got, err := upload(t.Context(), s, client(t, false), false, false, request{path: "/packed", body: noise(10_000),
		headers: map[string]string{"content-encoding": "gzip", "content-type": "application/json"}})
	passed(t, "10 KB that say they are compressed", got, err, 10_000, digest(noise(10_000)))
	if line := log.line(t, "/packed"); !strings.Contains(line, "decision=admitted") || !strings.Contains(line, "details=via_upstream") {
		t.Errorf("access log says %q, want it admitted", line)
	}
}
