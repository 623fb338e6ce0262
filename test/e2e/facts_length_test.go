package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/internal/stack"
)

// declaredUnseen has requests that declare a length come without their bodies, as bytes.count: framed prints it: the routes are
// there twice, first for those with a content-length.
func declaredUnseen(b *stack.Bootstrap) error {
	override, err := anypb.New(&filterv3.ExtProcPerRoute{Override: &filterv3.ExtProcPerRoute_Overrides{Overrides: &filterv3.ExtProcOverrides{
		ProcessingMode: &filterv3.ProcessingMode{
			RequestHeaderMode: sent, RequestBodyMode: filterv3.ProcessingMode_NONE, RequestTrailerMode: skip,
			ResponseHeaderMode: sent, ResponseBodyMode: filterv3.ProcessingMode_NONE, ResponseTrailerMode: sent,
		}}}})
	if err != nil {
		return err
	}
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		host := m.GetRouteConfig().VirtualHosts[0]
		var all []*routev3.Route
		for _, r := range host.Routes {
			framed := proto.CloneOf(r)
			framed.Match.Headers = append(framed.Match.Headers, &routev3.HeaderMatcher{
				Name: "content-length", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}})
			framed.TypedPerFilterConfig = map[string]*anypb.Any{"envoy.filters.http.ext_proc": override}
			all = append(all, framed, r)
		}
		host.Routes = all
		return nil
	})
}

// TestFactModeByRoute: a route can leave bodies out of the processor's stream although early bodies are on for the others, and
// the first message announces it. The upstream gets the body and its length all the same, only after the headers are answered.
func TestFactModeByRoute(t *testing.T) {
	t.Parallel()
	l := newLab(t, declaredUnseen)
	for _, http2 := range []bool{false, true} {
		for declared, want := range map[bool]string{true: "RH SH", false: "RH RB5 RB0. SH"} {
			path := fmt.Sprintf("/x%t%t", http2, declared)
			got, err := upload(t.Context(), l.Stack, client(t, http2), http2, declared, request{path: path, body: strings.NewReader("hello"), length: 5})
			passed(t, path, got, err, 5, digest(strings.NewReader("hello")))
			d := l.stream(t)
			eventually(t, "the stream to end", d.over)
			if heard := d.phases(); heard != want && !(http2 && heard == "RH RB5. SH") {
				t.Errorf("HTTP/2 %t, declared %t: heard %q, want %q", http2, declared, heard, want)
			}
			p := d.heard[0].GetProtocolConfig()
			if none := p.GetRequestBodyMode() == filterv3.ProcessingMode_NONE; none != declared {
				t.Errorf("HTTP/2 %t, declared %t: announced %v", http2, declared, p)
			}
		}
	}
}

// TestFactLengthsHold: Envoy's codecs hold clients to the length that they declare, in both directions and both versions of HTTP,
// also where the processor sees no body: no upstream gets a whole body of another length. The length that is declared is the
// length that arrives, so that it can be counted in place of the bytes.
func TestFactLengthsHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, declaredUnseen)
	const more = "GET /smuggled HTTP/1.1\nHost: t\n\n"
	for name, c := range map[string]struct {
		text   string
		closes bool // the client, before it has sent what it declares
		answer int  // of the first request; 0: none
		bytes  int64
		whole  int64 // whole bodies at the upstream
	}{
		"exact":                          {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5\n\nhello", false, 200, 5, 1},
		"short":                          {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 10\n\nhello", true, 0, 5, 0},
		"long":                           {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5\n\nhello, and more that is no request\n\n", false, 200, 5, 1},
		"pipelined":                      {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5\n\nhelloPOST /PATH HTTP/1.1\nHost: t\nContent-Length: 6\n\nhello!", false, 200, 11, 2},
		"chunked besides":                {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5\nTransfer-Encoding: chunked\n\n1\na\n0\n\n", false, 400, 0, 0},
		"two lengths":                    {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5\nContent-Length: 6\n\nhello!", false, 400, 0, 0},
		"two lengths in one":             {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 5, 6\n\nhello!", false, 400, 0, 0},
		"no number":                      {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: five\n\nhello", false, 400, 0, 0},
		"a sign":                         {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: +5\n\nhello", false, 400, 0, 0},
		"negative":                       {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: -5\n\nhello", false, 400, 0, 0},
		"hexadecimal":                    {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 0x5\n\nhello", false, 400, 0, 0},
		"above 64 bits":                  {"POST /PATH HTTP/1.1\nHost: t\nContent-Length: 18446744073709551621\n\nhello", false, 400, 0, 0},
		"a request where none was there": {"GET /PATH HTTP/1.1\nHost: t\nContent-Length: 33\n\n" + more, false, 200, 33, 1},
	} {
		path := "h1-" + strings.ReplaceAll(name, " ", "-")
		raw := dialRaw(t, l.Stack)
		raw.say(t, "%s", strings.ReplaceAll(c.text, "PATH", path))
		if c.closes {
			eventually(t, name+": the upstream", func() bool { return l.Upstream.CountsOf("/"+path).BodyBytes == c.bytes })
			raw.Close()
		} else if got, err := raw.answer("POST"); got.status != c.answer && (c.answer != 400 || err == nil) { // a broken connection refuses too
			t.Errorf("%s: %d (%v), want %d", name, got.status, err, c.answer)
		}
		eventually(t, name+": the upstream", func() bool {
			return l.Upstream.CountsOf("/"+path).Active == 0 && l.Upstream.CountsOf("/"+path).Completed >= c.whole
		})
		if got := l.Upstream.CountsOf("/" + path); got.Completed != c.whole || got.BodyBytes != c.bytes {
			t.Errorf("%s: the upstream had %d whole bodies of %d bytes in all, want %d of %d", name, got.Completed, got.BodyBytes, c.whole, c.bytes)
		}
	}
	if n := l.Upstream.CountsOf("/smuggled").Seen; n != 0 {
		t.Errorf("the upstream saw %d requests that came in bodies", n)
	}
	for name, c := range map[string]struct {
		lengths []string
		data    []string // DATA frames, the last with END_STREAM
		whole   int64    // bodies at the upstream; 2: none or one, since an upstream may answer once it has what was declared
		most    int64    // bytes at the upstream
	}{
		"exact":             {[]string{"10"}, []string{"hello", "hello"}, 1, 10},
		"short":             {[]string{"10"}, []string{"hello"}, 0, 5},
		"long":              {[]string{"5"}, []string{"hello", "hello"}, 2, 5},
		"long in one frame": {[]string{"5"}, []string{"hellohello"}, 0, 5},
		"long by one":       {[]string{"5"}, []string{"hello", "!"}, 2, 5},
		"none, with data":   {[]string{"0"}, []string{"hello"}, 2, 0},
		"some, without":     {[]string{"5"}, nil, 0, 0},
		"two lengths":       {[]string{"5", "10"}, []string{"hello", "hello"}, 0, 0},
		"no number":         {[]string{"five"}, []string{"hello"}, 0, 0},
		"negative":          {[]string{"-5"}, []string{"hello"}, 0, 0},
		"above 64 bits":     {[]string{"18446744073709551621"}, []string{"hello"}, 0, 0},
	} {
		path := "/h2-" + strings.ReplaceAll(name, " ", "-")
		status, reset := sendFrames(t, l.Stack, path, c.lengths, c.data)
		if c.whole < 2 && (status == "200") != (c.whole == 1) || status == "" && !reset {
			t.Errorf("HTTP/2, %s: status %q, reset %t, want an answer of 200 %t", name, status, reset, c.whole == 1)
		}
		eventually(t, name+": the upstream", func() bool { return l.Upstream.CountsOf(path).Active == 0 })
		if got := l.Upstream.CountsOf(path); c.whole < 2 && got.Completed != c.whole || got.BodyBytes > c.most || got.Completed > 0 && got.BodyBytes != c.most {
			t.Errorf("HTTP/2, %s: the upstream had %d whole bodies of %d bytes in all, want %d of at most %d", name, got.Completed, got.BodyBytes, c.whole, c.most)
		}
	}
}

// sendFrames sends one HTTP/2 request frame by frame, with whatever lengths, and says how it ends: the status of its answer, or
// that the stream or the connection was ended.
func sendFrames(t *testing.T, s *stack.Stack, path string, lengths, data []string) (status string, reset bool) {
	t.Helper()
	raw := dialRaw(t, s)
	if _, err := raw.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	frames := http2.NewFramer(raw, raw.in)
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	fields := []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path}, {Name: ":authority", Value: "t"}}
	for _, length := range lengths {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: length})
	}
	for _, f := range fields {
		if err := e.WriteField(f); err != nil {
			t.Fatal(err)
		}
	}
	err := frames.WriteSettings()
	if err == nil {
		err = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: len(data) == 0})
	}
	for i, d := range data {
		time.Sleep(30 * time.Millisecond) // so that the frames before have reached the upstream
		if err == nil {
			err = frames.WriteData(1, i == len(data)-1, []byte(d))
		}
	}
	for err == nil {
		var f http2.Frame
		if f, err = frames.ReadFrame(); err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status"), false
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "", true
		}
	}
	return "", true // the connection is gone
}
