package lease_test

import (
	"math"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/lease"
)

func TestParseOwner(t *testing.T) {
	t.Parallel()
	good := "vlo_" + strings.Repeat("A", 43)
	for name, c := range map[string]struct {
		header string
		hash   string
		want   lease.Reason
	}{
		"canonical":            {good, "e92bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2", ""},
		"blanks around it":     {" \t" + good + " ", "e92bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2", ""},
		"missing":              {"", "", lease.ContextRequired},
		"only blanks":          {"  \t", "", lease.ContextRequired},
		"no prefix":            {strings.Repeat("A", 47), "", lease.ContextInvalid},
		"prefix in upper case": {"VLO_" + strings.Repeat("A", 43), "", lease.ContextInvalid},
		"one too short":        {good[:46], "", lease.ContextInvalid},
		"one too long":         {good + "A", "", lease.ContextInvalid},
		"plain base64":         {"vlo_" + strings.Repeat("A", 42) + "+", "", lease.ContextInvalid},
		"blank inside":         {"vlo_" + strings.Repeat("A", 42) + " ", "", lease.ContextInvalid},
		"two owners":           {good + "," + good, "", lease.ContextInvalid},
		"not ASCII":            {"vlo_" + strings.Repeat("A", 41) + "é", "", lease.ContextInvalid},
		"line end inside":      {"vlo_" + strings.Repeat("A", 21) + "\n" + strings.Repeat("A", 21), "", lease.ContextInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, refusal := lease.ParseOwner(c.header)
			if reason(refusal) != c.want || string(o) != c.hash {
				t.Errorf("ParseOwner = %q, %q; want %q, %q", o, reason(refusal), c.hash, c.want)
			}
		})
	}
}

func TestParseGeneration(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]int64{
		"1": 1, " 7 ": 7, "1764536400000": 1764536400000, "9007199254740991": math.MaxInt64>>10 + 0,
	} {
		if got, refusal := lease.ParseGeneration(header); refusal != nil || got != want {
			t.Errorf("parseGeneration(%q) = %d, %q; want %d", header, got, reason(refusal), want)
		}
	}
	for _, header := range []string{
		"", " ", "0", "01", "-1", "+1", "1.0", "1e3", "0x1", "1_0", "9007199254740992", "18446744073709551617", "1 2", "a", "１",
	} {
		if got, refusal := lease.ParseGeneration(header); reason(refusal) != lease.ContextInvalid {
			t.Errorf("parseGeneration(%q) = %d, %q; want %s", header, got, reason(refusal), lease.ContextInvalid)
		}
	}
}

func TestSyntaxNamesTheOwnerFirst(t *testing.T) {
	t.Parallel()
	if _, _, refusal := lease.CheckSyntax("", "nonsense"); reason(refusal) != lease.ContextRequired {
		t.Errorf("no owner, bad generation: %s, want %s", reason(refusal), lease.ContextRequired)
	}
	if _, _, refusal := lease.CheckSyntax(rawOwner(1), ""); reason(refusal) != lease.ContextInvalid {
		t.Errorf("good owner, no generation: %s, want %s", reason(refusal), lease.ContextInvalid)
	}
	if o, g, refusal := lease.CheckSyntax(rawOwner(1), "5"); refusal != nil || o != owner(t, 1) || g != 5 {
		t.Errorf("good owner and generation: %q %d %s", o, g, reason(refusal))
	}
}

// TestTheEmptyKeyIsNobodys: no key matches a principal whose hash is that of nothing, and such a hash is a fault.
func TestTheEmptyKeyIsNobodys(t *testing.T) {
	t.Parallel()
	const ofNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	err := lease.ValidatePrincipals([]lease.Principal{{ID: "a"}, {ID: "b", KeySHA256: ofNothing}}, nil)
	if err == nil || !strings.Contains(err.Error(), "principals[1].keySHA256: ") || !strings.Contains(err.Error(), "empty key") {
		t.Errorf("the hash of the empty key: %v, want a fault of principals[1].keySHA256 that says so", err)
	}
	svc := newService(t, settings("acct-1"))
	for _, key := range []string{"", " "} {
		if id, ok := svc.IdentifyKey(key); ok {
			t.Errorf("key %q is %+v, want nobody", key, id)
		}
	}
}

func TestSyntaxCostsLittle(t *testing.T) {
	header := rawOwner(1)
	allocs := testing.AllocsPerRun(100, func() {
		if _, _, refusal := lease.CheckSyntax(header, "1764536400000"); refusal != nil {
			t.Fatal(refusal.Reason)
		}
	})
	if allocs > 3 {
		t.Errorf("CheckSyntax allocates %v times, want at most 3 (the hash as text)", allocs)
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add("vlo_"+strings.Repeat("A", 43), "1")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, o, g string) {
		parsed, generation, refusal := lease.CheckSyntax(o, g)
		if refusal == nil && (len(parsed) != 64 || generation < 1 || generation > lease.MaxGeneration) {
			t.Errorf("CheckSyntax(%q, %q) = %q, %d", o, g, parsed, generation)
		}
		if raw := strings.TrimSpace(o); raw != "" && refusal == nil && strings.Contains(string(parsed), raw) {
			t.Errorf("the owner of %q holds the raw value", o)
		}
	})
}
