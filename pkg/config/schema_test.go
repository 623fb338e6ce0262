package config

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// everyField visits all fields of the schema, those inside lists and maps included.
func everyField(section reflect.Type, path string, visit func(path string, f field)) {
	for _, f := range fieldsOf(section) {
		at := join(path, f.key)
		visit(at, f)
		t := f.typ
		for t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct {
			everyField(t, at, visit)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	count := 0
	everyField(reflect.TypeFor[Config](), "", func(path string, f field) {
		count++
		if f.key == "" {
			t.Errorf("%s: a field has no yaml tag", path)
		}
		if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
			t.Errorf("%s: doc %q is not a sentence", path, f.doc)
		}
		if strings.Contains(f.doc, "\n") {
			t.Errorf("%s: doc has more than one line", path)
		}
	})
	if count < 100 {
		t.Errorf("visited only %d fields; the walk misses some", count)
	}
}

func TestEveryDefaultObeysItsOwnRules(t *testing.T) {
	t.Parallel()
	c := Default()
	star := c.Clusters[AnyCluster]
	check := func(section reflect.Value, leaves []leaf) {
		for _, l := range leaves {
			v := section.FieldByIndex(l.index)
			if l.field.stringList() || (l.field.nullable && v.IsNil()) {
				continue
			}
			text := formatScalar(l.field, v)
			got, err := l.field.parseScalar(text)
			if err != nil {
				t.Errorf("%s: default %s is not acceptable: %v", l.path, text, err)
			} else if !reflect.DeepEqual(got.Interface(), v.Interface()) {
				t.Errorf("%s: default %v reads back as %v", l.path, v, got)
			}
		}
	}
	check(reflect.ValueOf(c).Elem(), staticLeaves())
	check(reflect.ValueOf(star), leavesOf(reflect.TypeFor[Cluster](), ""))
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
}

func TestRulesAreWrittenInTheNotationOfTheirKind(t *testing.T) {
	t.Parallel()
	everyField(reflect.TypeFor[Config](), "", func(path string, f field) {
		if f.kind == kindMap || f.kind == kindList {
			f = f.element()
		}
		for _, bound := range []string{f.min, f.max} {
			if bound == "" {
				continue
			}
			v, err := f.parseScalar(bound)
			if err != nil {
				t.Errorf("%s: bound %s: %v", path, bound, err)
				continue
			}
			by := 1e-9
			if bound == f.min {
				by = -by
			}
			if v.CanFloat() {
				v.SetFloat(v.Float() + by)
			} else {
				v.SetInt(v.Int() + int64(math.Copysign(1, by)))
			}
			if _, err := f.parseScalar(formatScalar(f, v)); err == nil {
				t.Errorf("%s: %s is beyond the bound %s and accepted", path, formatScalar(f, v), bound)
			}
		}
		for _, choice := range f.enum {
			if choice != strings.TrimSpace(choice) || f.kind != kindString {
				t.Errorf("%s: choice %q of a %s", path, choice, f.noun())
			}
		}
	})
}

func TestEnvironmentNamesAreUniqueAndDerivedFromThePath(t *testing.T) {
	t.Parallel()
	var names []string
	for _, l := range staticLeaves() {
		names = append(names, envName(l.path))
		if l.field.alias != "" {
			names = append(names, l.field.alias)
		}
	}
	for _, l := range clusterLeaves() {
		names = append(names, l.field.alias)
	}
	names = append(names, EnvFile)
	slices.Sort(names)
	for i, name := range names[1:] {
		if name == names[i] {
			t.Errorf("%s is the name of two values", name)
		}
		if serviceLink().MatchString(name) {
			t.Errorf("%s looks like a variable of a Kubernetes Service", name)
		}
	}
	for path, want := range map[string]string{
		"listen.grpc":                         "HEADGATE_LISTEN_GRPC",
		"bytes.queue.maxWait":                 "HEADGATE_BYTES_QUEUE_MAX_WAIT",
		"bytes.budget.cgroupPid":              "HEADGATE_BYTES_BUDGET_CGROUP_PID",
		"leases.store.redis.tls.caFile":       "HEADGATE_LEASES_STORE_REDIS_TLS_CA_FILE",
		"principals.keySHA256":                "HEADGATE_PRINCIPALS_KEY_SHA256",
		"x.keySHAFile":                        "HEADGATE_X_KEY_SHA_FILE",
		"bytes.structure.hardMaxMessages":     "HEADGATE_BYTES_STRUCTURE_HARD_MAX_MESSAGES",
		"leases.store.redis.sentinelUsername": "HEADGATE_LEASES_STORE_REDIS_SENTINEL_USERNAME",
	} {
		if got := envName(path); got != want {
			t.Errorf("%s: expected %s, got %s", path, want, got)
		}
	}
}

func TestPathsOfUnusualKeysAreQuoted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ path, key, want string }{
		{"", "bytes", "bytes"},
		{"bytes", "queue", "bytes.queue"},
		{"clusters", "*", `clusters["*"]`},
		{"clusters", "a.b", `clusters["a.b"]`},
		{"clusters", `q"]["x`, `clusters["q\"][\"x"]`},
		{`clusters["*"]`, "lanes", `clusters["*"].lanes`},
		{"", "", `[""]`},
	} {
		got := join(test.path, test.key)
		if got != test.want {
			t.Errorf("join(%q, %q): expected %s, got %s", test.path, test.key, test.want, got)
		}
		if test.key != `q"]["x` && parent(got) != test.path {
			t.Errorf("parent(%s): expected %q, got %q", got, test.path, parent(got))
		}
	}
	if got := parent("principals[3]"); got != "principals" {
		t.Errorf("parent of a list item: expected principals, got %q", got)
	}
}
