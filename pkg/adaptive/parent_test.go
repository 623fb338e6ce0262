package adaptive

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParentTokenSurvivesTheRoundTrip(t *testing.T) {
	t.Parallel()
	issuer := NewParentTokens([]byte("shared by replicas"), time.Minute, 3)
	replica := NewParentTokens([]byte("shared by replicas"), time.Minute, 3)
	for _, p := range []Parent{
		{Lane: "lane_0123456789abcdef", Cluster: "chat", Depth: 1},
		{Lane: "", Cluster: "", Depth: 3},
		{Lane: strings.Repeat("l", 255), Cluster: strings.Repeat("c", 255), Depth: 2},
	} {
		got, err := replica.Verify(issuer.Issue(p))
		if err != nil || got.Lane != p.Lane || got.Cluster != p.Cluster || got.Depth != p.Depth {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
	}
}

func TestParentTokenIsNotIssuedForWhatItCannotSay(t *testing.T) {
	t.Parallel()
	tokens := NewParentTokens(nil, time.Minute, 2)
	for _, p := range []Parent{
		{Depth: 0}, {Depth: 3}, {Depth: 1, Lane: strings.Repeat("l", 256)}, {Depth: 1, Cluster: strings.Repeat("c", 256)},
	} {
		if token := tokens.Issue(p); token != "" {
			t.Errorf("%+v: issued %q", p, token)
		}
	}
}

func TestParentTokenIsRefused(t *testing.T) {
	t.Parallel()
	tokens := NewParentTokens([]byte("secret"), time.Minute, 2)
	good := tokens.Issue(Parent{Lane: "lane", Cluster: "chat", Depth: 2})
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), raw...)
	flipped[1] = 1 // depth
	for name, tc := range map[string]struct {
		tokens *ParentTokens
		token  string
		want   error
	}{
		"empty":               {tokens, "", errTokenMalformed},
		"not base64":          {tokens, "~~~~", errTokenMalformed},
		"cut":                 {tokens, good[:20], errTokenMalformed},
		"a line break":        {tokens, good[:20] + "\n" + good[20:], errTokenMalformed},
		"too long":            {tokens, strings.Repeat("A", 5000), errTokenMalformed},
		"another secret":      {NewParentTokens(nil, time.Minute, 2), good, errTokenForged},
		"another depth":       {tokens, base64.RawURLEncoding.EncodeToString(flipped), errTokenForged},
		"more at the end":     {tokens, good + "AAAA", errTokenForged},
		"deeper than allowed": {NewParentTokens([]byte("secret"), time.Minute, 1), good, errTokenDepth},
	} {
		if p, err := tc.tokens.Verify(tc.token); !errors.Is(err, tc.want) || p != (Parent{}) {
			t.Errorf("%s: %+v, %v, want %v", name, p, err, tc.want)
		}
	}
}

func TestParentTokenExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := NewParentTokens(nil, time.Minute, 2)
		token := tokens.Issue(Parent{Depth: 1})
		time.Sleep(time.Minute - time.Millisecond)
		if _, err := tokens.Verify(token); err != nil {
			t.Errorf("a millisecond early: %v", err)
		}
		time.Sleep(time.Millisecond)
		if _, err := tokens.Verify(token); !errors.Is(err, errTokenExpired) {
			t.Errorf("in time: %v", err)
		}
	})
}

// Whatever verifies is, byte for byte, what issuing its content gives: nothing can be added, changed or said twice.
func FuzzParentTokenVerify(f *testing.F) {
	tokens := NewParentTokens([]byte("fuzz"), 24*time.Hour, 4)
	for _, p := range []Parent{{Depth: 1}, {Lane: "lane", Cluster: "chat", Depth: 4}} {
		token := tokens.Issue(p)
		f.Add(token)
		f.Add(token[:len(token)-1])
		f.Add(token + "=")
	}
	f.Add("")
	f.Add("AQEAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := tokens.Verify(token)
		if err != nil && p != (Parent{}) {
			t.Errorf("Verify(%q) = %+v with %v", token, p, err)
		}
		if err == nil && tokens.Issue(p) != token {
			t.Errorf("Verify(%q) = %+v, which is issued as %q", token, p, tokens.Issue(p))
		}
	})
}
