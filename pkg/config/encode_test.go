package config

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/budget/size"
)

func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("topsecret", 4)
	c := mustLoad(t, "fanout: {secret: "+secret+"}\nprincipals: [{id: team-a, keySHA256: "+hashA+"}, {id: team-b}]\n")
	shown, err := c.Redacted()
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{secret, hashA} {
		if strings.Contains(string(shown), hidden) {
			t.Errorf("%s is shown in\n%s", hidden, shown)
		}
	}
	var parsed struct {
		Fanout     struct{ Secret string }
		Principals []struct {
			ID        string
			KeySHA256 string `yaml:"keySHA256"`
		}
	}
	if err := yaml.Unmarshal(shown, &parsed); err != nil {
		t.Fatal(err)
	}
	if parsed.Fanout.Secret != redacted || parsed.Principals[0].KeySHA256 != redacted || parsed.Principals[1].KeySHA256 != "" {
		t.Errorf("expected that it shows which secrets are set, got %+v", parsed)
	}
	if c.Fanout.Secret != secret {
		t.Error("the configuration itself lost its secret")
	}
}

// TestNoUnmarkedSecret is a reminder for whoever adds a key: text that may be a credential is marked as one.
func TestNoUnmarkedSecret(t *testing.T) {
	t.Parallel()
	everyField(reflect.TypeFor[Config](), "", func(path string, f field) {
		name := strings.ToLower(f.key)
		if f.kind != kindString || f.secret || strings.HasSuffix(name, "file") || name == "keyprefix" || strings.HasPrefix(name, "firsttoken") || strings.HasPrefix(name, "share") {
			return
		}
		for _, word := range []string{"secret", "password", "token", "credential", "sha", "key"} {
			if strings.Contains(name, word) {
				t.Errorf("%s looks like a secret but is not marked as one", path)
			}
		}
	})
}

func TestFaultsDoNotShowSecrets(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"fanout: {secret: hunter2}",
		"fanout: {secret: [hunter2]}",
		"fanout: {secret: 2, hunter: hunter2hunter2}",
		"principals: [{id: a, keySHA256: hunter2}]",
		"principals: [{id: a, keySHA256: {a: hunter2}}]",
	} {
		for _, f := range faultsOf(t, text) {
			if strings.Contains(f.String(), "hunter2") {
				t.Errorf("given %q, the fault shows it: %v", text, f)
			}
		}
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	base := Default().Hash()
	if len(base) != 16 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("expected 16 hex digits, got %q", base)
	}
	for _, same := range []*Config{
		mustLoad(t, "{}"), mustLoad(t, "bytes: {hardMaxBody: 52428800} # 50MiB\n"), mustLoad(t, "", "HEADGATE_DECISION_MAX_WAIT=8000ms"),
	} {
		if same.Hash() != base {
			t.Errorf("equal settings: expected %s, got %s", base, same.Hash())
		}
	}
	secret := strings.Repeat("s", leastSecret)
	seen := map[string]string{base: "defaults"}
	for _, text := range []string{
		"bytes: {heavySlots: 1}", "fanout: {secret: " + secret + "}", "fanout: {secret: " + secret + "x}",
		"clusters: {chat: {}}", "principals: [{id: a}]", "tenant: {weights: {a: 2}}",
	} {
		hash := mustLoad(t, text).Hash()
		if other, ok := seen[hash]; ok {
			t.Errorf("%q and %q have the same hash %s", text, other, hash)
		}
		seen[hash] = text
	}
}

func TestChangedPaths(t *testing.T) {
	t.Parallel()
	old := mustLoad(t, "clusters: {a: {}, b: {}}")
	now := mustLoad(t, `
listen: {api: ""}
bytes: {heavySlots: 3, queue: {maxWait: 1s}}
clusters: {a: {lanes: {minLimit: 9}}, c: {}}
principalSources: []
tenant: {maxLanes: 5}
log: {level: debug}
`)
	want := "listen.api tenant.maxLanes principalSources bytes.queue.maxWait bytes.heavySlots clusters.a.lanes.minLimit clusters.b clusters.c log.level"
	if got := strings.Join(changedPaths(old, now), " "); got != want {
		t.Errorf("expected %s\ngot      %s", want, got)
	}
	if got := strings.Join(needsRestart(old, now), " "); got != "listen.api tenant.maxLanes log.level" {
		t.Errorf("expected that listen.api, tenant.maxLanes and log.level need a restart, got %s", got)
	}
	if got := changedPaths(now, now); len(got) != 0 {
		t.Errorf("expected no change to itself, got %q", got)
	}
}

func TestDurationsAreShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", 2 * time.Minute: "2m", 24 * time.Hour: "24h",
		time.Hour + time.Second: "1h0m1s", 1500 * time.Millisecond: "1.5s", 10 * time.Minute: "10m", 10 * time.Hour: "10h",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v: expected %s, got %s", d, want, got)
		}
		if back, err := parseDuration(want); err != nil || back != d {
			t.Errorf("%s: expected it to be read back as %v, got %v, %v", want, d, back, err)
		}
	}
}

// TestWhatIsWrittenIsReadBack draws values for every key, within its rules, and expects the decoder to be the inverse
// of the encoder.
func TestWhatIsWrittenIsReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := Default()
		drawSection(rt, reflect.ValueOf(c).Elem(), "")
		data, err := c.encode(false)
		if err != nil {
			rt.Fatal(err)
		}
		r, back := newReport(), Default()
		decodeFile(r, back, data)
		if len(r.faults) > 0 {
			rt.Fatalf("faults %v in\n%s", r.faults, data)
		}
		if changed := changedPaths(c, back); len(changed) > 0 {
			rt.Fatalf("%q differ after reading back\n%s", changed, data)
		}
		if c.Hash() != back.Hash() {
			rt.Fatal("equal configurations have different hashes")
		}
	})
}

func drawSection(t *rapid.T, v reflect.Value, path string) {
	for _, f := range fieldsOf(v.Type()) {
		drawValue(t, v.Field(f.index), f, join(path, f.key))
	}
}

func drawValue(t *rapid.T, v reflect.Value, f field, path string) {
	if f.nullable {
		v.SetZero()
		if !rapid.Bool().Draw(t, path+" set") {
			return
		}
		v.Set(reflect.New(f.typ))
		v = v.Elem()
	}
	switch f.kind {
	case kindSection:
		drawSection(t, v, path)
	case kindList:
		v.SetZero()
		if n := rapid.IntRange(0, 3).Draw(t, path); n > 0 {
			v.Set(reflect.MakeSlice(f.typ, n, n))
		}
		for i := range v.Len() {
			drawValue(t, v.Index(i), f.element(), path+"[]")
		}
	case kindMap:
		v.Set(reflect.MakeMap(f.typ))
		keys := rapid.SliceOfN(trimmed(), 0, 3).Draw(t, path)
		if f.inherit != "" {
			keys = append(keys, f.inherit)
		}
		for _, key := range keys {
			elem := reflect.New(f.typ.Elem()).Elem()
			drawValue(t, elem, f.element(), path+"{}")
			v.SetMapIndex(reflect.ValueOf(key), elem)
		}
	default:
		drawScalar(t, v, f, path)
	}
}

func drawScalar(t *rapid.T, v reflect.Value, f field, path string) {
	bound := func(text string, otherwise float64) float64 {
		b, err := f.parseScalar(text)
		switch {
		case text == "" || err != nil:
			return otherwise
		case b.CanFloat():
			return b.Float()
		}
		return float64(b.Int())
	}
	switch {
	case f.kind == kindBool:
		v.SetBool(rapid.Bool().Draw(t, path))
	case v.CanFloat() && f.kind == kindSize:
		v.SetFloat(rapid.Float64Range(math.SmallestNonzeroFloat64, math.MaxFloat64).Draw(t, path))
	case v.CanFloat():
		v.SetFloat(rapid.Float64Range(bound(f.min, -math.MaxFloat64), bound(f.max, math.MaxFloat64)).Draw(t, path))
	case v.CanInt():
		v.SetInt(rapid.Int64Range(int64(bound(f.min, 0)), int64(bound(f.max, math.MaxInt32))).Draw(t, path))
	case len(f.enum) > 0:
		v.SetString(rapid.SampledFrom(f.enum).Draw(t, path))
	case f.required:
		v.SetString("x" + trimmed().Draw(t, path))
	default:
		v.SetString(trimmed().Draw(t, path))
	}
}

func TestBudgetOverrideIsNotWrittenWithAnExponent(t *testing.T) {
	t.Parallel()
	c := Default()
	override := float64(2 << 40)
	c.Bytes.Budget.Override, c.Bytes.Budget.Floor = &override, size.Bytes(1<<20+1)
	data, err := c.Redacted()
	if err != nil || !strings.Contains(string(data), "override: 2199023255552\n") || !strings.Contains(string(data), "floor: 1048577\n") {
		t.Errorf("expected plain digits, got %v\n%s", err, data)
	}
}

// trimmed is any text without blanks around it, which no configuration holds.
func trimmed() *rapid.Generator[string] {
	return rapid.Map(rapid.StringN(0, 24, -1), strings.TrimSpace)
}
