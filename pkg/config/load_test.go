package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/lease"
)

const example = `
listen: {grpc: "unix:///run/headgate/extproc.sock", admin: "127.0.0.1:9003", api: "127.0.0.1:9004"}
tenant: {sources: [{metadata: envoy.filters.http.jwt_authn/payload/sub}], maxLanes: 1000}
decision: {window: 256KiB, uploadIdle: 150ms, maxWait: 8s}
bytes:
  largeBody: 256KiB
  hardMaxBody: 50MiB
  budget: {override: null, fraction: 0.25, amplification: 8, floor: 8MiB, cap: 2GiB, protectedMemory: null, cgroupRoot: /}
  queue: {maxWait: 2s, calmWait: 250ms, maxQueuedBytes: 4MiB}
  heavySlots: null
  structure: {messages: 200, tools: 64, tokens: 32000, hardMaxMessages: 0}
  releaseAt: responseStart
pressure: {high: 0.85, critical: 0.92, recovery: 0.75, psi: {high: 30, critical: 60, recovery: 15}}
clusters:
  "*":  {lanes: {mode: shadow, virtualLanes: false}, lease: {mode: off}}
  chat: {lanes: {mode: enforce, virtualLanes: true, minLimit: 8, initialLimit: 64, maxLimit: 1000, maxQueueCount: 128,
                 maxQueueCost: 2000, maxWait: 5s, window: 1s}, lease: {mode: required, pool: chat}}
leases:
  store: {embedded: true}
  ttl: 120s
  pools: {chat: {connections: [{id: acct-1, cluster: openai-1, models: ["*"]}]}}
principals: [{id: team-a, keySHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", scopes: ["lease:exclusive"], connections: [acct-1]}]
`

func TestExampleOfTheDesign(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, example)
	changed := changedPaths(Default(), c)
	want := []string{"tenant.sources", "clusters.chat", "leases.pools.chat", "principals"}
	if !slices.Equal(changed, want) {
		t.Errorf("everything else in it is the default; expected %q to differ, got %q", want, changed)
	}
	chat := c.Cluster("chat")
	if chat.Lanes.Mode != adaptive.Enforce || !chat.Lanes.VirtualLanes || chat.Lease.Mode != lease.ModeRequired {
		t.Errorf("cluster chat: got %+v", chat)
	}
	if other := c.Cluster("other"); other.Lanes.Mode != adaptive.Shadow || other.Lease.Mode != lease.ModeOff {
		t.Errorf("a cluster without an entry uses \"*\"; got %+v", other)
	}
	namespace, keys := c.Tenant.Sources[0].MetadataPath()
	if namespace != "envoy.filters.http.jwt_authn" || !slices.Equal(keys, []string{"payload", "sub"}) {
		t.Errorf("metadata source: got namespace %q, keys %q", namespace, keys)
	}
	if len(c.Notes) != 0 {
		t.Errorf("expected no notes, got %q", c.Notes)
	}
}

func TestNoFileAndAnEmptyMappingMeanTheDefaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{}", "bytes:\nclusters:\n  chat:\nleases: {pools: , store: {redis: {addrs: }}}\n"} {
		c := mustLoad(t, text)
		delete(c.Clusters, "chat")
		if changed := changedPaths(Default(), c); len(changed) != 0 {
			t.Errorf("given %q: expected the defaults, %q differ", text, changed)
		}
	}
}

func TestFilesAreAcceptedOrRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"blank", " \n", []string{"the file is empty; write {}"}},
		{"only comments", "# nothing\n", []string{"the file is empty"}},
		{"only a document marker", "---\n", []string{"the file is empty"}},
		{"null", "null\n", []string{"the file is empty"}},
		{"two documents", "{}\n---\n{}\n", []string{"line 2", "more than one YAML document"}},
		{"tabs", "bytes:\n\tlargeBody: 1MiB\n", []string{"not YAML", "line 2 is indented with a tab"}},
		{"not YAML", "bytes: [1, 2\n", []string{"not YAML", "line 1"}},
		{"list", "- bytes\n", []string{"line 1", "must be a mapping, not a list"}},
		{"string", "bytes\n", []string{"must be a mapping, not a string"}},
		{"unknown key", "bytes:\n  largebody: 1MiB\n", []string{"line 2: bytes.largebody: unknown key; did you mean largeBody?"}},
		{"unknown section", "cluster: {}\n", []string{"line 1: cluster: unknown key; did you mean clusters?"}},
		{"unknown key far from all", "bytes: {zebra: 1}\n", []string{"bytes.zebra: unknown key"}},
		{"key twice", "log: {level: info}\nlisten: {}\nlog: {level: debug}\n", []string{"line 3: log: key given twice, first on line 1"}},
		{"cluster twice", "clusters:\n  chat: {}\n  chat: {}\n", []string{"line 3: clusters.chat: key given twice, first on line 2"}},
		{"merge key", "clusters:\n  a: &a {lanes: {minLimit: 9}}\n  b:\n    <<: *a\n", []string{"line 4", "merge keys"}},
		{"key is a list", "clusters:\n  ? [a, b]\n  : {}\n", []string{"keys must be strings, not a list"}},
		{"alias bomb", aliasBomb(), []string{"expands to more than"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			expectFault(t, faultsOf(t, test.text), test.want...)
		})
	}
}

func aliasBomb() string {
	models := strings.Repeat("m,", 1000)
	connections := strings.Repeat("*c,", 1000)
	pools := make([]string, 0, 200)
	for i := range 200 {
		pools = append(pools, "p"+string(rune('a'+i/26))+string(rune('a'+i%26))+": *p")
	}
	return "leases: {pools: {first: &p {connections: [&c {id: x, models: [" + models + "]}," + connections + "]}," +
		strings.Join(pools, ",") + "}}\n"
}

func TestAnchorsWork(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "clusters:\n  a: &a {lanes: {minLimit: 9}}\n  b: *a\n")
	if got := c.Cluster("b").Lanes.MinLimit; got != 9 {
		t.Errorf("expected minLimit 9 through the alias, got %d", got)
	}
}

func TestValuesAreAcceptedOrRefused(t *testing.T) {
	t.Parallel()
	const ok = ""
	for _, test := range []struct{ text, want string }{
		{"bytes: {hardMaxBody: 1048576}", ok},
		{"bytes: {hardMaxBody: 1MiB}", ok},
		{"bytes: {hardMaxBody: 1MB}", ok},
		{`bytes: {hardMaxBody: "1048576"}`, ok},
		{"bytes: {hardMaxBody: 0}", ok},
		{"bytes: {hardMaxBody: 1Mi}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 1M}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 1e6}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 1.5MiB}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 1 MiB}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 0x10}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: -1}", "want a whole number of bytes"},
		{"bytes: {hardMaxBody: 9223372036854775808}", "too large"},
		{"bytes: {hardMaxBody: 8388608TiB}", "too large"},
		{"bytes: {hardMaxBody: true}", "must be a size, not true or false"},
		{"bytes: {hardMaxBody: [1]}", "must be a size, not a list"},
		{"bytes: {hardMaxBody: }", "has no value; leave the key out"},
		{"bytes: {largeBody: 0}", "must be at least 1"},
		{"bytes: {queue: {maxWait: 0}}", ok},
		{"bytes: {queue: {maxWait: 1m30s}}", ok},
		{"bytes: {queue: {maxWait: 2}}", "needs a unit: 2ms or 2s"},
		{"bytes: {queue: {maxWait: 2.5}}", "must be a duration such as"},
		{"bytes: {queue: {maxWait: 2 s}}", "must be a duration such as"},
		{"bytes: {queue: {maxWait: 1d}}", "must be a duration such as"},
		{"bytes: {queue: {maxWait: -1s}}", "must not be negative"},
		{"bytes: {queue: {maxWait: 25h}}", "must be at most 24h"},
		{"bytes: {queue: {maxWait: 5000000000h}}", "must be a duration such as"},
		{"bytes: {heavySlots: 8}", ok},
		{"bytes: {heavySlots: null}", ok},
		{"bytes: {heavySlots: ~}", ok},
		{"bytes: {heavySlots: 0}", "must be at least 1"},
		{`bytes: {heavySlots: "8"}`, "must be an integer, not a string; leave the quotes out"},
		{"bytes: {heavySlots: 8.0}", "must be an integer"},
		{"bytes: {heavySlots: 010}", "plain decimal integer"},
		{"bytes: {heavySlots: 1_0}", "plain decimal integer"},
		{"bytes: {heavySlots: 0x8}", "plain decimal integer"},
		{"bytes: {heavySlots: 99999999999999999999}", "must be an integer"},
		{"bytes: {memoryRatio: 1}", ok},
		{"bytes: {memoryRatio: 7.5e-1}", ok},
		{"bytes: {memoryRatio: 1.1}", "must be at most 1"},
		{"bytes: {memoryRatio: .nan}", "must be a finite decimal number"},
		{"bytes: {memoryRatio: .inf}", "must be a finite decimal number"},
		{`bytes: {memoryRatio: "0.5"}`, "must be a number, not a string; leave the quotes out"},
		{"bytes: {releaseAt: never}", "must be one of responseStart, responseEnd"},
		{"pressure: {psi: {disabled: yes}}", "must be true or false, not a string"},
		{`pressure: {psi: {disabled: "true"}}`, "leave the quotes out"},
		{"pressure: {psi: {disabled: 1}}", "must be true or false, not an integer"},
		{"pressure: {psi: {disabled: True}}", ok},
		{"log: {level: warn}", ok},
		{"log: {level: WARN}", "must be one of debug, info, warn, error"},
		{"listen: {api: 9004}", "must be a string, not an integer; quote it"},
		{"listen: {api: 2001-01-01}", "must be a string, not a date; quote it"},
		{"tenant: {weights: {' team': 2}}", "the key \" team\" has blanks around it"},
		{"tenant: {sources: [{header: 'x-tenant '}]}", "has blanks around it"},
		{"routeCluster: {attributes: [' xds.cluster_name']}", "has blanks around it"},
		{"clusters: {'chat ': {}}", "the key \"chat \" has blanks around it"},
		{"bytes: {budget: {override: 99999999999999999999}}", "bytes.budget.override"},
		{"bytes: {budget: {cap: 9223372036854775807}}", "bytes.budget.cap"},
		{"listen: {api: !odd x}", "must be a string, not a value with a tag of its own"},
		{"routeCluster: {attributes: xds.cluster_name}", "must be a list, not a string"},
		{"routeCluster: {attributes: [1]}", "routeCluster.attributes[0]: must be a string"},
		{"tenant: {weights: {a: 2, 42: 0.5}}", ok},
		{"tenant: {weights: {a: 0}}", "tenant.weights.a: must be at least 0.001"},
		{"tenant: {weights: {a.b: heavy}}", `tenant.weights["a.b"]: must be a number`},
		{"principals: {id: a}", "must be a list, not a mapping"},
		{"principals: [{scopes: []}]", "principals[0].id: is required"},
		{"principals: [team]", "principals[0]: must be a mapping, not a string"},
		{`principals: [{id: ""}]`, "principals[0].id: is required"},
		{"decision: {window: 1023}", "must be at least 1KiB"},
		{"decision: {maxWait: 0}", "must be at least 1ms"},
	} {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			if test.want == ok {
				mustLoad(t, test.text)
				return
			}
			expectFault(t, faultsOf(t, test.text), "line 1: ", test.want)
		})
	}
}

func TestBudgetOverride(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		value string
		want  float64 // 0 is refused
	}{
		{"134217728", 134217728}, {`"134217728"`, 134217728}, {"128MiB", 134217728}, {"1024", 1024}, {"1024.5", 1024.5},
		{".nan", 0}, {".inf", 0}, {"0", 0}, {"0.0", 0}, {"-1", 0}, {"-1.5", 0}, {"1e6", 0}, {"lots", 0}, {`""`, 0}, {"12x", 0},
	} {
		text := "bytes: {budget: {override: " + test.value + "}}"
		if test.want == 0 {
			expectFault(t, faultsOf(t, text), "bytes.budget.override")
			continue
		}
		if got := mustLoad(t, text).Bytes.Budget.Override; got == nil || *got != test.want {
			t.Errorf("override %s: expected %v, got %v", test.value, test.want, got)
		}
	}
}

func TestAllFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	text := `bytes:
  hardMaxBody: -1
  queue: {maxWait: 2}
clusters:
  chat:
    lanes: {mode: strict}
    lease: {mode: required, pool: none}
principals:
  - {id: a, keySHA256: nonsense}
  - {id: a}
bogus: 1
`
	_, err := loadText(t, text, "HEADGATE_LOG_LEVEL=loud", "ADAPTIVE_ADMISSION_MIN_LIMIT=0", "HEADGATE_TYPO=1")
	want := []string{
		"8 faults",
		"line 2: bytes.hardMaxBody: ",
		"line 3: bytes.queue.maxWait: duration 2 needs a unit",
		"line 6: clusters.chat.lanes.mode: must be one of off, shadow, enforce",
		`line 7: clusters.chat.lease.pool: there is no pool "none"`,
		"line 9: principals[0].keySHA256: is not 64",
		"line 10: principals[1].id: ",
		"line 11: bogus: unknown key",
		`ADAPTIVE_ADMISSION_MIN_LIMIT: clusters["*"].lanes.minLimit: must be at least 1`,
		"HEADGATE_LOG_LEVEL: log.level: must be one of",
		"HEADGATE_TYPO: unknown variable",
	}
	want[0] = "10 faults"
	rest := err.Error()
	for _, part := range want {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("expected, in this order, %q in\n%v", part, err)
		}
		rest = after
	}
}

func TestFaultsAreNotRepeatedAsConsequences(t *testing.T) {
	t.Parallel()
	text := "clusters: {a: {lease: {mode: required, pool: p}}}\nleases: {pools: {p: wrong}}\n" +
		"principals: [{id: a, scopes: [\"lease:exclusive\"], connections: [c]}]\n"
	expectFault(t, faultsOf(t, text), "leases.pools.p: must be a mapping")
}

func TestManyFaultsAreCut(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for range 150 {
		b.WriteString("- {id: [x]}\n")
	}
	_, err := loadText(t, "principals:\n"+b.String())
	if text := err.Error(); !strings.Contains(text, "150 faults") || !strings.HasSuffix(text, "and 50 more") {
		t.Errorf("expected 150 faults of which 50 are not listed, got %s", text)
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.yaml")
	if _, err := Load(missing, nil); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("expected an error with the path, got %v", err)
	}
	if _, err := Load(dir, nil); err == nil {
		t.Error("a directory is no configuration file")
	}
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large, nil); err == nil || !strings.Contains(err.Error(), "4MiB") {
		t.Errorf("expected a limit on the file's size, got %v", err)
	}
}

func TestPathFromTheEnvironment(t *testing.T) {
	t.Parallel()
	named := writeFile(t, t.TempDir(), "decision: {maxWait: 3s}")
	given := writeFile(t, t.TempDir(), "decision: {maxWait: 4s}")
	for _, test := range []struct {
		path string
		want time.Duration
	}{{"", 3 * time.Second}, {given, 4 * time.Second}} {
		c, err := Load(test.path, []string{"HEADGATE_CONFIG=" + named})
		if err != nil {
			t.Fatal(err)
		}
		if c.Decision.MaxWait != test.want {
			t.Errorf("path %q: expected %v, got %v", test.path, test.want, c.Decision.MaxWait)
		}
	}
}

// TestErrorsQuoteNoSecret: wherever a secret was written by mistake, the error does not show it.
func TestErrorsQuoteNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"fanout: {secret: !hunter2hunter2}", "fanout:\n  secret: *hunter2hunter2\n", "fanout:\n  secret: &hunter2hunter2\n",
		"fanout:\n  secret: !!hunter2 abc\n", "fanout:\n  secret: hunter2: hunter2\n", "fanout:\n  secret: @hunter2\n",
		"fanout:\n  secret: `hunter2`\n", "fanout:\n  secret: %hunter2\n", "fanout:\n  secret: \"hunter2\\q\"\n",
		"fanout:\n  secret: hunter2hunter2hunter2hunter2\n  secret: hunter2\n", "fanout: {secret: >-hunter2}",
		"principals: [{id: a, keySHA256: !hunter2 x}]", "fanout:\n  secret: |hunter2\n    abc\n", "fanout:\n  secret: ' hunter2'\n",
		"fanout: {secret: !hunter2%21 x}", "fanout: {secret: *hunter2'hunter2'}",
	} {
		if _, err := Load(writeFile(t, t.TempDir(), text), nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error %v, want one without the secret", text, err)
		}
	}
}
