package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/budget/size"
)

// TestWhatIsSurelyNotMeant: what is valid and surely not meant is noted once, and nothing else is.
func TestWhatIsSurelyNotMeant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file string
		want []string // parts of the notes, in order
	}{
		{"{}", nil},
		{"listen: {grpc: '0.0.0.0:9002'}", []string{"whoever reaches it speaks as Envoy"}},
		{"listen: {grpc: '0.0.0.0:9002', grpcTLS: {certFile: a, keyFile: b, clientCAFile: c}}", nil},
		{"bytes: {largeBody: 60MiB}", []string{"bytes.largeBody 60MiB is above bytes.hardMaxBody"}},
		{"bytes: {budget: {override: 1024}}", []string{"bytes.budget.override 1024 is below bytes.largeBody"}},
		{"bytes: {queue: {maxQueuedBytes: 1KiB}}", []string{"no large body ever waits"}},
		{"clusters: {chat: {lanes: {mode: enforce, minLimit: 1, initialLimit: 2, maxLimit: 2}}}", []string{"clusters.chat.lanes.maxLimit 2 is below the cost"}},
		{"clusters: {chat: {lanes: {mode: enforce, minLimit: 8}}}", nil},
		{"tenant: {sources: [{metadata: envoy.filters.http.jwt_authn/sub}]}", []string{"payload_in_metadata gives, as in envoy.filters.http.jwt_authn/payload/sub"}},
		{"tenant: {sources: [{metadata: envoy.filters.http.jwt_authn/payload/sub}]}", nil},
		{"tenant: {weights: {a: 2}}", []string{"tenant.weights has no effect"}},
		{"leases: {onLost: cut, renewInFlight: false}", []string{"leases.onLost: cut has no effect"}},
		{"leases: {pools: {p: {connections: [{id: a, cluster: a, models: ['*']}]}}}", []string{"no cluster has lease.pool: p", "no principal may use a"}},
		{"principals: [{id: a}]", []string{"a has no keySHA256"}},
		{"{principals: [{id: a}], principalSources: [{apiKey: true}, {metadata: n/sub}]}", nil},
	} {
		got, err := parse("test.yaml", []byte(c.file), nil)
		if err != nil {
			t.Errorf("%s: %v, want notes only", c.file, err)
			continue
		}
		for i, note := range got.Notes {
			if i >= len(c.want) || !strings.Contains(note, c.want[i]) {
				t.Errorf("%s: note %q, want %q", c.file, note, c.want)
			}
		}
		if len(got.Notes) != len(c.want) {
			t.Errorf("%s: %d notes, want %d: %q", c.file, len(got.Notes), len(c.want), got.Notes)
		}
	}
}

// TestHintsForOtherNotations: what people bring from Kubernetes, gRPC and Redis is understood, or the error says how it is
// written here; a URL, which may hold a password, is not shown.
func TestHintsForOtherNotations(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"bytes: {largeBody: 512Mi}":                                       "write 512MiB",
		"bytes: {largeBody: 1gib}":                                        "write 1GiB",
		"bytes: {largeBody: 512 KiB}":                                     "write 512KiB",
		"bytes: {largeBody: 512M}":                                        "write 512MB",
		"leases: {store: {redis: {addrs: ['rediss://:hunter2@r:6379']}}}": "is a URL; write host:port",
	} {
		_, err := parse("test.yaml", []byte(file), nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q and no password", file, err, want)
		}
	}
	if _, err := size.Parse("512B"); err == nil || strings.Contains(err.Error(), "write") {
		t.Errorf("512B: %v, want no hint", err)
	}
	if c, err := parse("test.yaml", []byte("listen: {grpc: 'unix:/run/x.sock'}"), nil); err != nil || c.Listen.GRPC != "unix:/run/x.sock" {
		t.Errorf("unix:/run/x.sock: %v", err)
	}
}

// TestSchemaHasEveryKey: the schema and the loader know the same keys.
func TestSchemaHasEveryKey(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	if err := Schema(&text); err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, l := range leavesOf(reflect.TypeFor[Config](), "") {
		if key := l.path[strings.LastIndexByte(l.path, '.')+1:]; !strings.Contains(text.String(), `"`+key+`": {`) {
			missing = append(missing, l.path)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("the schema lacks %q", missing)
	}
}
