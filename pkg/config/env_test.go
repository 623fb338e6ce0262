package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// TestEveryAlias has a row for each variable of the reference system.
func TestEveryAlias(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, path, value, want, garbage string
	}{
		{"OMNIROUTE_CHAT_LARGE_BODY_BYTES", "bytes.largeBody", "1024", "1KiB", "0"},
		{"OMNIROUTE_CHAT_HARD_MAX_BODY_BYTES", "bytes.hardMaxBody", "0", "0", "-1"},
		{"OMNIROUTE_CHAT_MAX_INFLIGHT_BYTES", "bytes.budget.override", "134217728", "134217728", "NaN"},
		{"OMNIROUTE_CHAT_ADMISSION_QUEUE_MS", "bytes.queue.maxWait", "1500", "1.5s", "2s"},
		{"OMNIROUTE_CHAT_ADMISSION_MAX_QUEUED_BYTES", "bytes.queue.maxQueuedBytes", "1MiB", "1MiB", "1Mi"},
		{"OMNIROUTE_CHAT_MAX_HEAVY_IN_FLIGHT", "bytes.heavySlots", "8", "8", "0"},
		{"OMNIROUTE_CHAT_ADMISSION_HEALTHY_HEADROOM", "bytes.healthyHeadroom", "0", "0", "x"},
		{"OMNIROUTE_CHAT_ADMISSION_HEAP_SHED_RATIO", "bytes.memoryRatio", "0.5", "0.5", "1.5"},
		{"OMNIROUTE_CHAT_HEAVY_MESSAGE_COUNT", "bytes.structure.messages", "2", "2", "0"},
		{"OMNIROUTE_CHAT_HEAVY_TOOL_COUNT", "bytes.structure.tools", "3", "3", "1.5"},
		{"OMNIROUTE_CHAT_HEAVY_ESTIMATED_TOKENS", "bytes.structure.tokens", "4", "4", "1e3"},
		{"OMNIROUTE_CHAT_HARD_MAX_MESSAGES", "bytes.structure.hardMaxMessages", "5", "5", "-5"},
		{"OMNIROUTE_PRESSURE_PSI_DISABLED", "pressure.psi.disabled", "1", "true", "disabled"},
		{"ADAPTIVE_ADMISSION_MODE", `clusters["*"].lanes.mode`, "enforce", "enforce", "strict"},
		{"ADAPTIVE_ADMISSION_MIN_LIMIT", `clusters["*"].lanes.minLimit`, "5", "5", "0"},
		{"ADAPTIVE_ADMISSION_INITIAL_LIMIT", `clusters["*"].lanes.initialLimit`, "104249991", "104249991", "104249992"},
		{"ADAPTIVE_ADMISSION_MAX_LIMIT", `clusters["*"].lanes.maxLimit`, "104249991", "104249991", "1.5"},
		{"ADAPTIVE_ADMISSION_MAX_QUEUE_COUNT", `clusters["*"].lanes.maxQueueCount`, "104249991", "104249991", "9007199254740992"},
		{"ADAPTIVE_ADMISSION_MAX_QUEUE_COST", `clusters["*"].lanes.maxQueueCost`, "104249991", "104249991", "104249992"},
		{"ADAPTIVE_ADMISSION_MAX_WAIT_MS", `clusters["*"].lanes.maxWait`, "86400000", "24h", "86400001"},
		{"ADAPTIVE_ADMISSION_WINDOW_MS", `clusters["*"].lanes.window`, "1", "1ms", "0"},
		{"OMNIROUTE_CHAT_VIRTUAL_LANES", `clusters["*"].lanes.virtualLanes`, "true", "true", "yes"},
	}
	var untested []string
	for _, l := range slices.Concat(staticLeaves(), clusterLeaves()) {
		if l.field.alias != "" {
			untested = append(untested, l.field.alias)
		}
	}
	for _, test := range tests {
		untested = slices.DeleteFunc(untested, func(name string) bool { return name == test.name })
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := mustLoad(t, "", test.name+"="+test.value)
			if got := valueAt(t, c, test.path); got != test.want {
				t.Errorf("%s=%s: expected %s %s, got %s", test.name, test.value, test.path, test.want, got)
			}
			expectFault(t, faultsOf(t, "", test.name+"="+test.garbage), test.name+": "+test.path+": ")
		})
	}
	if len(untested) > 0 {
		t.Errorf("no test for %q", untested)
	}
}

// valueAt formats the value at a path outside maps and lists, or of a cluster entry.
func valueAt(t *testing.T, c *Config, path string) string {
	t.Helper()
	find := func(section reflect.Value, leaves []leaf, path string) string {
		for _, l := range leaves {
			if l.path != path {
				continue
			}
			v := section.FieldByIndex(l.index)
			if v.Kind() == reflect.Pointer {
				if v.IsNil() {
					return "null"
				}
				v = v.Elem()
			}
			if l.field.stringList() {
				return fmt.Sprint(v.Interface())
			}
			return formatScalar(l.field, v)
		}
		t.Fatalf("no value at %s", path)
		return ""
	}
	for name, cluster := range c.Clusters {
		if rest, ok := strings.CutPrefix(path, join("clusters", name)+"."); ok {
			return find(reflect.ValueOf(cluster), leavesOf(reflect.TypeFor[Cluster](), ""), rest)
		}
	}
	return find(reflect.ValueOf(c).Elem(), staticLeaves(), path)
}

func TestEveryValueHasAVariable(t *testing.T) {
	t.Parallel()
	defaults := Default()
	for _, l := range staticLeaves() {
		want := valueAt(t, defaults, l.path)
		value := want
		switch {
		case l.field.stringList():
			value, want = " a:1, b:2 ", "[a:1 b:2]"
		case want == "null":
			value, want = "7", "7"
		case want == "":
			continue // strings without a default have rules of their own
		}
		c := newReport()
		got := Default()
		applyEnv(c, got, environment([]string{envName(l.path) + "=" + value}))
		if len(c.faults) > 0 {
			t.Errorf("%s=%s: %v", envName(l.path), value, c.faults)
		} else if valueAt(t, got, l.path) != want {
			t.Errorf("%s=%s: expected %s, got %s", envName(l.path), value, want, valueAt(t, got, l.path))
		}
		if o := c.originOf(l.path); o.env != envName(l.path) {
			t.Errorf("%s: expected the variable as its origin, got %+v", l.path, o)
		}
	}
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "decision: {maxWait: 3s, window: 1KiB}", "HEADGATE_DECISION_MAX_WAIT= 4s\n")
	if c.Decision.MaxWait != 4*time.Second || c.Decision.Window != 1024 {
		t.Errorf("expected 4s from the environment and 1KiB from the file, got %v and %v", c.Decision.MaxWait, c.Decision.Window)
	}
}

func TestEmptyVariablesAreUnset(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "decision: {maxWait: 3s}", "HEADGATE_DECISION_MAX_WAIT=", "ADAPTIVE_ADMISSION_MODE=  ", "HEADGATE_CONFIG=", "HEADGATE_TYPO=", "malformed")
	if c.Decision.MaxWait != 3*time.Second || c.Cluster("x").Lanes.Mode != adaptive.Shadow {
		t.Errorf("expected 3s and shadow, got %v and %s", c.Decision.MaxWait, c.Cluster("x").Lanes.Mode)
	}
}

func TestTruthValues(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"true": true, "1": true, "True": true, "false": false, "0": false, "FALSE": false} {
		c := mustLoad(t, `clusters: {"*": {}}`, "OMNIROUTE_CHAT_VIRTUAL_LANES="+value)
		if got := c.Cluster("x").Lanes.VirtualLanes; got != want {
			t.Errorf("%s: expected %t, got %t", value, want, got)
		}
	}
	for _, value := range []string{"yes", "on", "2", "t", "enabled", "00"} {
		expectFault(t, faultsOf(t, "", "OMNIROUTE_CHAT_VIRTUAL_LANES="+value), "must be true or false")
	}
}

func TestTwoNamesOfOneValue(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "", "OMNIROUTE_CHAT_ADMISSION_QUEUE_MS=1500", "HEADGATE_BYTES_QUEUE_MAX_WAIT=1.5s")
	if c.Bytes.Queue.MaxWait != 1500*time.Millisecond {
		t.Errorf("the same value twice: expected 1.5s, got %v", c.Bytes.Queue.MaxWait)
	}
	expectFault(t, faultsOf(t, "", "OMNIROUTE_CHAT_ADMISSION_QUEUE_MS=1500", "HEADGATE_BYTES_QUEUE_MAX_WAIT=2s"),
		"HEADGATE_BYTES_QUEUE_MAX_WAIT", "bytes.queue.maxWait", "conflicts with OMNIROUTE_CHAT_ADMISSION_QUEUE_MS")
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	expectFault(t, faultsOf(t, "", "HEADGATE_LOG_LEVL=info"), "HEADGATE_LOG_LEVL: unknown variable; did you mean HEADGATE_LOG_LEVEL?")
	expectFault(t, faultsOf(t, "", "HEADGATE_CLUSTERS_CHAT_LANES_MODE=off"), "unknown variable")
	// A Service named headgate makes Kubernetes inject these into every pod of the namespace.
	mustLoad(t, "",
		"HEADGATE_SERVICE_HOST=10.0.0.1", "HEADGATE_SERVICE_PORT=9002", "HEADGATE_SERVICE_PORT_GRPC=9002",
		"HEADGATE_PORT=tcp://10.0.0.1:9002", "HEADGATE_PORT_9002_TCP=tcp://10.0.0.1:9002", "HEADGATE_PORT_9002_TCP_PROTO=tcp",
		"HEADGATE_PORT_9002_TCP_PORT=9002", "HEADGATE_PORT_9002_TCP_ADDR=10.0.0.1", "HEADGATE_ADMIN_SERVICE_HOST=10.0.0.2",
		"HEADGATE_ADMIN_PORT_9003_TCP_ADDR=10.0.0.2", "HEADGATE_VALKEY_SERVICE_PORT_REDIS=6379",
	)
}

func TestVariablesWithoutEffectAreNoted(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "", "OMNIROUTE_CHAT_VIRTUAL_TTL_MS=whatever", "OMNIROUTE_CHAT_VIRTUAL_MAX_SESSIONS=64",
		"OMNIROUTE_CHAT_SOMETHING=1", "OMNIROUTE_PORT=3000", "PATH=/bin")
	want := []string{
		"accepted without effect, there are no controllers per session: OMNIROUTE_CHAT_VIRTUAL_MAX_SESSIONS, OMNIROUTE_CHAT_VIRTUAL_TTL_MS",
		"ignored, nothing here has these names: OMNIROUTE_CHAT_SOMETHING",
	}
	if !slices.Equal(c.Notes, want) {
		t.Errorf("expected one line each\n%q, got\n%q", want, c.Notes)
	}
	if c.Hash() != Default().Hash() {
		t.Error("they changed a setting")
	}
}

func TestTheFirstOfTwoEqualNamesCounts(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "", "HEADGATE_LOG_LEVEL=debug", "HEADGATE_LOG_LEVEL=error")
	if c.Log.Level != "debug" {
		t.Errorf("expected debug, got %s", c.Log.Level)
	}
}

func TestLanesInherit(t *testing.T) {
	t.Parallel()
	const env = "ADAPTIVE_ADMISSION_MIN_LIMIT=3"
	for _, test := range []struct {
		name, text string
		environ    []string
		chat, rest int // minLimit of cluster chat and of one without an entry
	}{
		{"built in", "clusters: {chat: {lanes: {maxLimit: 900}}}", nil, 8, 8},
		{"environment", "clusters: {chat: {lanes: {maxLimit: 900}}}", []string{env}, 3, 3},
		{"entry * over the environment", `clusters: {"*": {lanes: {minLimit: 4}}, chat: {}}`, []string{env}, 4, 4},
		{"entry * given last", `clusters: {chat: , "*": {lanes: {minLimit: 4}}}`, []string{env}, 4, 4},
		{"own entry over all", `clusters: {chat: {lanes: {minLimit: 5}}, "*": {lanes: {minLimit: 4}}}`, []string{env}, 5, 4},
		{"own entry over the environment", `clusters: {chat: {lanes: {minLimit: 5}}}`, []string{env}, 5, 3},
		{"field by field", `clusters: {chat: {lanes: {maxLimit: 900}}, "*": {lanes: {minLimit: 4, maxLimit: 100}}}`, []string{env}, 4, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := mustLoad(t, test.text, test.environ...)
			if got := c.Cluster("chat").Lanes.MinLimit; got != test.chat {
				t.Errorf("chat: expected minLimit %d, got %d", test.chat, got)
			}
			if got := c.Cluster("other").Lanes.MinLimit; got != test.rest {
				t.Errorf("other: expected minLimit %d, got %d", test.rest, got)
			}
			if strings.Contains(test.text, "900") && c.Cluster("chat").Lanes.MaxLimit != 900 {
				t.Errorf("chat: expected its own maxLimit 900, got %d", c.Cluster("chat").Lanes.MaxLimit)
			}
		})
	}
}

func TestLeaseSettingsInheritToo(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
clusters:
  "*": {lease: {mode: managed, pool: p}, fanout: {issueParent: true}}
  chat: {lease: {mode: required}}
leases: {pools: {p: {connections: [{id: a}]}}}
`)
	chat := c.Cluster("chat")
	if chat.Lease.Pool != "p" || chat.Lease.Mode != "required" || !chat.Fanout.IssueParent {
		t.Errorf("expected mode of its own, pool and fan-out of \"*\", got %+v %+v", chat.Lease, chat.Fanout)
	}
}
