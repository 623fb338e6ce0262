package bodyscan

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestFeaturesOfCompleteBodies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		body string
		want Features // Known and Complete are implied
	}{
		{"empty object", `{}`, Features{}},
		{"chat with two messages, two tools and two answers",
			`{"n":2,"messages":[{},{}],"tools":[{},{}],"stream":false}`,
			Features{Messages: 2, Tools: 2, Fanout: 2, StreamKnown: true}},
		{"stream absent stays unknown", `{"messages":[]}`, Features{}},
		{"stream null stays unknown", `{"stream":null}`, Features{}},
		{"input string is one message", `{"input":"abcdefgh"}`, Features{Messages: 1, Tokens: 2}},
		{"empty input string is none", `{"input":""}`, Features{}},
		{"input of one escape is one message", `{"input":"\n"}`, Features{Messages: 1}},
		{"input array counts its elements", `{"input":["a",["b","c"]]}`, Features{Messages: 2}},
		{"messages and input add up", `{"messages":[1,2],"input":["a"]}`, Features{Messages: 3}},
		{"single content object is one message", `{"contents":{"parts":[]}}`, Features{Messages: 1, Tokens: 1}},
		{"declarations count instead of their tool",
			`{"contents":[{}],"tools":[{"functionDeclarations":[{},{}]}],"generationConfig":{"candidateCount":4}}`,
			Features{Messages: 1, Tools: 2, Fanout: 4, Tokens: 8}},
		{"a tool without declarations counts once", `{"tools":[{"functionDeclarations":[]},7]}`, Features{Tools: 2, Tokens: 5}},
		{"declarations at the top", `{"functionDeclarations":[1,2],"functions":[3]}`, Features{Tools: 3}},
		{"wrapper", `{"model":"","request":{"messages":[1],"tools":[1,2,3],"n":5,"stream":true}}`,
			Features{Messages: 1, Tools: 3, Fanout: 5, Stream: true, StreamKnown: true}},
		{"wrapper and top level add up", `{"messages":[1],"request":{"messages":[1,2]}}`, Features{Messages: 3}},
		{"the stream flag of the top level wins, before", `{"stream":false,"request":{"stream":true}}`, Features{StreamKnown: true}},
		{"the stream flag of the top level wins, after", `{"request":{"stream":true},"stream":false}`, Features{StreamKnown: true}},
		{"a wrapper inside the wrapper is none", `{"request":{"request":{"messages":[1]}}}`, Features{Tokens: 2}},
		{"an array is no wrapper", `{"request":[{"messages":[1]}]}`, Features{Tokens: 2}},
		{"deeper names do not count", `{"a":{"messages":[1,2],"n":9,"stream":true}}`, Features{Tokens: 3}},
		{"repeated names add up, the last stream flag holds", `{"messages":[1,2],"messages":[],"stream":true,"stream":false}`,
			Features{Messages: 2, StreamKnown: true}},
		{"escaped names match", `{"\u006D\u0065ssages":[1,2],"strea\u006d":true}`, Features{Messages: 2, Stream: true, StreamKnown: true}},
		{"other names do not", `{"message":[1],"messagess":[1],"messages\u0000":[1]}`, Features{}},
		{"fan-out out of range saturates", `{"n":1e400}`, Features{Fanout: math.MaxInt32}},
		{"a very long fan-out saturates", `{"n":` + strings.Repeat("9", 100) + `}`, Features{Fanout: math.MaxInt32}},
		{"negative, fractional and textual fan-outs", `{"n":-3,"n":2.9,"n":"7"}`, Features{Fanout: 2}},
		{"candidateCount only counts where it belongs", `{"a":{"candidateCount":3}}`, Features{Tokens: 3}},
		{"five schema names of 100 characters", schemaOfNames(5, 100), Features{Tools: 1, Tokens: 129}},
		{"code points outside ASCII", `{"input":"日本語é\u00e9\ud83d\ude00"}`, Features{Messages: 1, Tokens: 6}},
		{"halves of pairs count as one each", `{"input":"\ud83d\ud83d\ude00\ude00"}`, Features{Messages: 1, Tokens: 3}},
		{"byte order mark", "\xEF\xBB\xBF" + `{"n":2}`, Features{Fanout: 2}},
		{"white space around", " \r\n\t[ ] \n", Features{}},
		{"a number", `-12.50e-7`, Features{}},
		{"a string", `"abcd"`, Features{Tokens: 1}},
		{"31 containers", strings.Repeat("[", 31) + strings.Repeat("]", 31), Features{}},
		{"an ordinary schema, twelve deep", `{"messages":[{"role":"user","content":"abcd"}],"tools":[{"function":{"parameters":{"properties":{"a":{"items":{"properties":{"b":{"items":{"properties":{"c":{"type":"string"}}}}}}}}}}}]}`, Features{Messages: 1, Tools: 1, Tokens: 22}},
		{"names in another case", `{"Messages":[1,2],"me\u017f\u017fages":[3],"meſſages":[4],"TOOLS":[5],"N":6}`, Features{Messages: 4, Tools: 1, Fanout: 6}},
		{"numbers that are no JSON", `{"temperature":NaN,"a":-Infinity,"b":Infinity,"messages":[1,2]}`, Features{Messages: 2}},
		{"a NUL after the document", "{\"messages\":[1,2]}\x00", Features{Messages: 2}},
		{"another document after it", `{"messages":[1,2]} {"messages":[1]}`, Features{Messages: 2}},
		{"a tokenised input", `{"input":[1,2,3,4]}`, Features{Tokens: 4}},
		{"many tokenised inputs", `{"input":[[1,2,3],[4,5]]}`, Features{Messages: 2, Tokens: 5}},
		{"numbers that are no JSON in a tokenised input", `{"input":[1,NaN,-Infinity,[Infinity,2]]}`, Features{Messages: 1, Tokens: 5}},
		{"twenty thousand tokens", `{"input":[` + strings.Repeat("1234,", 19_999) + `1]}`, Features{Tokens: 20_000}},
		{"prompts", `{"prompt":["abcd","efgh","ijkl"]}`, Features{Messages: 3, Tokens: 3}},
		{"one prompt", `{"prompt":"abcd"}`, Features{Messages: 1, Tokens: 1}},
		{"a list of requests", `[{"messages":[1,2]},{"messages":[3]}]`, Features{Messages: 5}},
		{"a list of instances", `{"instances":[{"a":1},{"a":2}]}`, Features{Messages: 2}},
		{"ten thousand values", `[` + strings.Repeat(`0,`, 9_998) + `0]`, Features{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.want.Known, test.want.Complete = true, true
			if got := scan([]byte(test.body)); got != test.want {
				t.Errorf("got %+v, want %+v, of %.80s", got, test.want, test.body)
			}
		})
	}
}

func schemaOfNames(count, length int) string {
	var b strings.Builder
	b.WriteString(`{"tools":[{"schema":{`)
	for i := range count {
		fmt.Fprintf(&b, `%q:0,`, strings.Repeat("k", length-1)+string(rune('a'+i)))
	}
	b.WriteString(`"properties":0}}]}`)
	return b.String()
}

// TestExhaustedStays: what is too much stays so whatever follows, and after the first MiB nothing changes any more.
func TestExhaustedStays(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"10001 elements":       `{"messages":[` + strings.Repeat(`0,`, 10_001),
		"10001 names":          `{` + strings.Repeat(`"a":0,`, 10_001),
		"32 arrays":            strings.Repeat("[", 32),
		"32 objects":           strings.Repeat(`{"a":`, 31) + "{",
		"a million containers": strings.Repeat("[", 1_000_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var faulty Scanner
			faulty.Write([]byte(body))
			faulty.Write([]byte("\x00 no JSON at all"))
			if got := faulty.Close(); !got.Exhausted || !got.Known || got.Complete || faulty.NotJSON() {
				t.Errorf("after a fault: %+v, NotJSON %v: want exhausted and known", got, faulty.NotJSON())
			}
			var long Scanner
			long.Write([]byte(body))
			if long.Done() {
				t.Error("done at once, want it to read on")
			}
			whole := append([]byte(body), bytes.Repeat([]byte(" "), mostRead-len(body)-1)...)
			whole = append(whole, `1,"messages":[1,2,3]`...)
			if one, many := scan(whole), scanChunked(whole, 3); one != many {
				t.Errorf("as a whole %+v, in chunks %+v, want the same", one, many)
			}
			for range 16 {
				long.Write(bytes.Repeat([]byte(" "), 1<<16))
			}
			before := long.Features()
			long.Write([]byte(`1],"messages":[1,2,3]`))
			if got := long.Close(); !long.Done() || got != before || !got.Exhausted {
				t.Errorf("a MiB later: done %v, %+v, then %+v; want it done and nothing changed", long.Done(), before, got)
			}
		})
	}
}

// TestExhaustedStillCounts: behind any padding members count and the model is found.
func TestExhaustedStillCounts(t *testing.T) {
	t.Parallel()
	const rest = `"messages":[1,2,{"a":[]}],"tools":[1],"n":4,"stream":true,"model":"m"}`
	want := Features{Messages: 3, Tools: 1, Fanout: 4, Stream: true, StreamKnown: true, Known: true, Exhausted: true}
	for name, pad := range map[string]string{
		"wide":                      `[` + strings.Repeat("0,", 10_001) + `0]`,
		"deep":                      strings.Repeat("[", 500) + strings.Repeat("]", 500),
		"deep objects":              strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500),
		"brackets in deep strings":  strings.Repeat("[", 32) + `"]]]}}}\\\"]]]", "\u005d\\"` + strings.Repeat("]", 32),
		"as deep as is looked into": strings.Repeat("[", 30) + `[]` + strings.Repeat("]", 30),
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			var s Scanner
			for body := []byte(`{"x":` + pad + `,` + rest); len(body) > 0; body = body[min(size, len(body)):] {
				s.Write(body[:min(size, len(body))])
			}
			got := s.Close()
			got.Tokens = 0
			if got != want {
				t.Errorf("%s, in chunks of %d: %+v, want %+v", name, size, got, want)
			}
			if model, known := s.Model(); string(model) != "m" || !known {
				t.Errorf("%s, in chunks of %d: model %q, known %v, want m", name, size, model, known)
			}
		}
	}
}

func TestNotJSONSettlesAtTheFault(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"gzip":                          "\x1f\x8b\x08\x00",
		"zstd":                          "\x28\xb5\x2f\xfd",
		"form":                          "a=1",
		"NUL":                           "\x00",
		"NUL in a string":               "{\"a\x00",
		"UTF-16":                        "\xff\xfe{\x00",
		"half a byte order mark":        "\xEF\xBB{",
		"trailing comma":                `{"messages":[1],}`,
		"missing comma":                 `[1 2`,
		"wrong end":                     `{"a":[}`,
		"leading zero":                  `[01`,
		"bare name":                     `{a`,
		"unknown escape":                `"\x`,
		"bad hexadecimal":               `"\u12g`,
		"misspelt literal":              `[trux`,
		"not a number":                  `[NAN`,
		"sign alone":                    `[-]`,
		"end without a beginning":       `]`,
		"comma without a value":         `[,`,
		"number ending in its exponent": `[1e,`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s Scanner
			s.Write([]byte(body))
			if !s.NotJSON() || s.Features() != (Features{}) {
				t.Fatalf("NotJSON %v, features %+v after %q: want true and none", s.NotJSON(), s.Features(), body)
			}
			s.Write([]byte(`{}`))
			if got := s.Close(); got != (Features{}) || !s.NotJSON() {
				t.Errorf("after a document that follows: NotJSON %v, features %+v, want true and none", s.NotJSON(), got)
			}
		})
	}
}

func TestBodiesCutShortAreMalformedOnlyAtTheEnd(t *testing.T) {
	t.Parallel()
	body := `{"messages":["\u00e9",{"a":-1.5e+3}],"stream":true}`
	for n := range len(body) {
		var s Scanner
		s.Write([]byte(body[:n]))
		if s.NotJSON() || s.Features().Known != (n > 0) || s.Features().Complete {
			t.Errorf("NotJSON %v, features %+v after %q: want JSON so far, not complete", s.NotJSON(), s.Features(), body[:n])
		}
		if f := s.Close(); f != (Features{}) || !s.NotJSON() {
			t.Errorf("NotJSON %v, features %+v after the end of %q: want not JSON", s.NotJSON(), f, body[:n])
		}
	}
}

func TestFeaturesGrowWithTheBody(t *testing.T) {
	t.Parallel()
	var s Scanner
	s.Write([]byte(`{"stream":true,"messages":["abcd","efgh`))
	got := s.Features()
	want := Features{Messages: 2, Tokens: 2, Stream: true, StreamKnown: true, Known: true}
	if got != want {
		t.Errorf("in mid-body got %+v, want %+v", got, want)
	}
}

func TestEverySplitGivesTheSameFeatures(t *testing.T) {
	t.Parallel()
	for _, body := range seeds() {
		if len(body) > 1000 {
			continue
		}
		want := scan([]byte(body))
		for cut := range len(body) {
			var s Scanner
			s.Write([]byte(body[:cut]))
			s.Write(nil)
			s.Write([]byte(body[cut:]))
			if got := s.Close(); got != want {
				t.Errorf("cut at %d got %+v, whole %+v, of %q", cut, got, want, body)
			}
		}
	}
}

// TestPlainStopsWhereAByteLoopStops puts every byte at every place of a run long enough for the eight-byte path.
func TestPlainStopsWhereAByteLoopStops(t *testing.T) {
	t.Parallel()
	for first := range 256 {
		for second := range 256 {
			run := []byte("abcdefghabcdefghabc")
			run[3+first%8], run[4+first%8+second%4] = byte(first), byte(second)
			n, quarters := plain(run)
			wantN, wantQuarters := plainByByte(run)
			if n != wantN || quarters != wantQuarters {
				t.Fatalf("got %d bytes, %d quarters, want %d and %d, of %q", n, quarters, wantN, wantQuarters, run)
			}
		}
	}
}

func TestHexadecimalReadsWhatDigitsRead(t *testing.T) {
	t.Parallel()
	for first := range 256 {
		for second := range 256 {
			p := [4]byte{'0', 'f', 'A', '9'}
			p[first%4], p[(first+1+second%3)%4] = byte(first), byte(second)
			want, wantOK := uint16(0), true
			for _, c := range p {
				digit := hexDigit(c)
				want, wantOK = want<<4|digit, wantOK && digit < 16
			}
			if got, ok := hexadecimal(p[:]); ok != wantOK || ok && got != want {
				t.Fatalf("got %#x, %v, want %#x, %v, of %q", got, ok, want, wantOK, p)
			}
		}
	}
}

func plainByByte(p []byte) (n, quarters int) {
	for _, c := range p {
		switch {
		case c < 0x20, c == '"', c == '\\':
			return n, quarters
		case c < 0x80:
			quarters++
		case c >= 0xC0:
			quarters += 4
		}
		n++
	}
	return n, quarters
}

func TestScanningAllocatesNothing(t *testing.T) {
	body := []byte(chat(200, 2000))
	var s Scanner
	var got Features
	n := testing.AllocsPerRun(100, func() {
		s.Reset()
		for chunk := body; len(chunk) > 0; chunk = chunk[min(len(chunk), 1021):] {
			s.Write(chunk[:min(len(chunk), 1021)])
		}
		got = s.Close()
	})
	if n != 0 || got.Messages != 200 || got.Fanout != 3 {
		t.Errorf("got %v allocations a scan and %+v, want none, 200 messages and 3 answers", n, got)
	}
}

// chat is a request of messages with text of about length bytes each, escapes and other scripts included.
func chat(messages, length int) string {
	sentence := `Why does \"func (s *Scanner)\" not allocate?\n\tIt keeps – nothing. `
	text := strings.Repeat(sentence, max(1, length/len(sentence)))
	message := `{"role":"user","content":"` + text + `"}`
	return `{"model":"m","n":3,"messages":[` + strings.Repeat(message+",", messages-1) + message + `],"stream":true}`
}

func BenchmarkScan(b *testing.B) {
	const size = 4 << 20
	for _, c := range []struct{ name, body string }{
		{"ascii", `{"input":"` + strings.Repeat("The quick brown fox. ", size/21) + `"}`},
		{"base64", `{"input":"` + strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", size/24) + `"}`},
		{"japanese", `{"input":"` + strings.Repeat("日本語の文章です。", size/27) + `"}`},
		{"escapes", `{"input":"` + strings.Repeat(`\n`, size/2) + `"}`},
		{"unicode escapes", `{"input":"` + strings.Repeat(`\u00e9`, size/6) + `"}`},
		{"white space", `{` + strings.Repeat(" ", size) + `}`},
		{"digits", `[` + strings.Repeat("1", size) + `]`},
		{"chat", chat(100, size/100)},
		{"short values", `[` + strings.Repeat(`{"a":1,"b":"text"},`, 3_300)},
		{"exhausted", strings.Repeat("[", size)},
	} {
		body := []byte(c.body)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			var s Scanner
			for b.Loop() {
				s.Reset()
				for chunk := body; len(chunk) > 0; chunk = chunk[min(len(chunk), 64<<10):] {
					s.Write(chunk[:min(len(chunk), 64<<10)])
				}
			}
		})
	}
}

// TestModel: the text under "model", whatever chunks it comes in.
func TestModel(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("m", maxModel)
	for body, want := range map[string]struct {
		name  string
		known bool
	}{
		`{"model":"gpt-5"}`:                       {"gpt-5", true},
		`{"model":"a\/b","messages":[]}`:          {"a/b", true},
		`{"MODEL":"x"}`:                           {"x", true},
		`{"model":"first","model":"last"}`:        {"last", true},
		`{"messages":[{"model":"x"}]}`:            {"", false},
		`{"model":5}`:                             {"", false},
		`{"model":"` + long + `"}`:                {long, true},
		`{"model":"` + long + `m"}`:               {"", true},
		`{"model":"\u00e9"}`:                      {"", true},
		`{"model":"gp`:                            {"", false},
		`{"request":{"model":"wrapped"}}`:         {"wrapped", true},
		`{"tools":[{"model":"x"}],"model":"m"} x`: {"m", true},
	} {
		var s Scanner
		for i := range len(body) {
			s.Write([]byte(body[i : i+1]))
		}
		if name, known := s.Model(); string(name) != want.name || known != want.known {
			t.Errorf("%.60s: model %q, known %v; want %q, %v", body, name, known, want.name, want.known)
		}
	}
}
