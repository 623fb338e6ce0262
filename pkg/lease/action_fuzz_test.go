package lease

import (
	"encoding/json"
	"slices"
	"testing"
)

func FuzzAction(f *testing.F) {
	for _, seed := range []string{
		`{"action":"acquire","model":"m"}`, `{"action":"release","generation":1,"reason":"OWNER_EXIT"}`, `{"action":"renew","generation":9007199254740991}`, `{`, `{"a":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, refusal := parseAction(body)
		if refusal != nil {
			if refusal.Reason != ActionInvalid && refusal.Reason != ModelInvalid {
				t.Errorf("%q: %s", body, refusal.Reason)
			}
			return
		}
		if !json.Valid(body) || !slices.Contains([]string{"acquire", "renew", "release", "status"}, a.name) {
			t.Errorf("accepted %q as %+v", body, a)
		}
		if a.name != "acquire" && (a.generation < 1 || a.generation > maxGeneration) {
			t.Errorf("accepted %q with generation %d", body, a.generation)
		}
	})
}
