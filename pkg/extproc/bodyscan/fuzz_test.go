package bodyscan

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// seeds lead the fuzzer to every branch.
func seeds() []string {
	return []string{
		``, ` `, `{}`, `[]`, `null`, `-0.5e+3`, `01`, `"x"`, "\xEF\xBB\xBF{\"n\":3}", "\xEF\xBB", "\x1f\x8b\x08\x00",
		`{"messages":[{"role":"user","content":"hi \"you\" \\ \u00e9\ud83d\ude00\ud800\n"}],"stream":true,"n":2}`,
		`{"input":"text","tools":[{"a":1},{"functionDeclarations":[{},{},{}]}],"functions":[1,2]}`,
		`{"request":{"contents":[1],"tools":[1,2,3],"generationConfig":{"candidateCount":5},"stream":true},"stream":false}`,
		`{"\u006dessages":[1,2],"messages":{"a":[]},"n":1e3,"n":123456789012345678901234567890,"n":-4}`,
		`{"a":{"request":{"messages":[1]}},"messages":"","input":0,"stream":null,"tools":{}}`,
		`{"messages":[1],}`, `{"messages":[1] "a":2}`, `[1,]`, `{"a" 1}`, `{} {}`, `{"a":tru}`, `{"a":"\x"}`, "{\"a\":\"\x00\"}",
		`{"a":"\u12g4"}`, "{\"日本語\":\"日本語\xff\xfe\"}", `{"é":"` + strings.Repeat("a", 40) + `"}`, `[1.]`, `[1e]`, `[-]`, `[.5]`,
		`{"a":` + strings.Repeat("[", 40) + `"]\"` + strings.Repeat("]", 40) + `,"messages":[1,2],"model":"m"}`,
		`{"a":` + strings.Repeat("[", 40) + `"]\"",{"b":[]}` + strings.Repeat("]", 40) + `,"messages":[1,2],"model":"m"}`,
		`{"input":[NaN,[Infinity,-Infinity]],"a":[` + strings.Repeat("0,", 10_001) + `0],"tools":[1,2],"n":3}`,
		strings.Repeat("[", 11) + strings.Repeat("]", 11), strings.Repeat("[", 12), strings.Repeat(`{"a":`, 12),
		`[` + strings.Repeat(`1,`, 9_998) + `1]`, `[` + strings.Repeat(`1,`, 10_001) + `1]`,
	}
}

// FuzzScanner compares the scan, whole and in chunks, with encoding/json.
func FuzzScanner(f *testing.F) {
	for i, seed := range seeds() {
		f.Add([]byte(seed), uint64(i))
	}
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		whole := scan(body)
		if chunked := scanChunked(body, seed); chunked != whole {
			t.Fatalf("in chunks %+v, as a whole %+v, of %q", chunked, whole, body)
		}
		want, nodes := slowFeatures(body)
		if !want.Known && (bytes.Contains(body, []byte("NaN")) || bytes.Contains(body, []byte("Infinity"))) {
			return // taken as Python takes them; encoding/json refuses them
		}
		got := whole
		if got.Exhausted {
			if nodes == maxNodes && !want.Known { // exhausted by the first byte of a malformed value
				return
			}
			if want.Messages == 0 && !json.Valid(body) { // malformed, or followed by something: only that is certain
				got, want = Features{Known: true, Exhausted: got.Exhausted}, Features{Known: true, Exhausted: want.Exhausted}
			}
		}
		if !utf8.Valid(body) { // encoding/json counts a replacement for every stray byte
			got.Tokens, want.Tokens = 0, 0
		}
		if got != want {
			t.Fatalf("got %+v, want %+v, of %q", got, want, body)
		}
	})
}

func scan(body []byte) Features {
	var s Scanner
	s.Write(body)
	return s.Close()
}

// scanChunked cuts body at random places, and looks at the features on the way, which must not change the result.
func scanChunked(body []byte, seed uint64) Features {
	random := rand.New(rand.NewPCG(seed, 1))
	longest := 1 + random.IntN(40)
	var s Scanner
	for len(body) > 0 {
		n := min(len(body), random.IntN(longest+1))
		chunk := append([]byte(nil), body[:n]...)
		s.Write(chunk)
		clear(chunk) // the scanner must not look at it again
		s.Features()
		body = body[n:]
	}
	return s.Close()
}
