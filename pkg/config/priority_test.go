package config

import (
	"strings"
	"testing"
)

func TestPriority(t *testing.T) {
	const levels = "levels: [{name: high, share: 6}, {name: low, share: 1}]"
	for _, test := range []struct{ name, text, fault string }{
		{"all of it", "priority: {" + levels + ", default: high, sources: [{metadata: ns/key}, {attribute: request.id}, {header: x-level}]}", ""},
		{"no level of that name", "priority: {" + levels + ", default: hihg}", `priority.default: "hihg" is none of the levels in priority.levels`},
		{"a name twice", "priority: {levels: [{name: a, share: 1}, {name: a, share: 2}]}", `priority.levels[1].name: "a" stands twice`},
		{"no share", "priority: {levels: [{name: a}]}", "priority.levels[0].share: must be given, in 1..1000"},
		{"a share too large", "priority: {levels: [{name: a, share: 1001}]}", "priority.levels[0].share"},
		{"a negative share", "priority: {levels: [{name: a, share: -1}]}", "priority.levels[0].share"},
		{"no name", "priority: {levels: [{share: 1}]}", `priority.levels[0].name: "" must have 1 to 32 lower-case letters, digits, - and _`},
		{"a name that no label should have", "priority: {levels: [{name: 'High One', share: 1}]}", "priority.levels[0].name"},
		{"too many", "priority: {levels: [" + strings.Repeat("{name: a, share: 1}, ", 9) + "]}", "priority.levels: must have at most 8 levels, has 9"},
		{"sources without levels", "priority: {sources: [{header: x-level}]}", "priority.sources: has no effect without priority.levels"},
		{"an API key", "priority: {" + levels + ", sources: [{apiKey: true}]}", "priority.sources[0].apiKey: names a principal, not a level"},
		{"a source of two kinds", "priority: {" + levels + ", sources: [{header: a, attribute: b}]}", "priority.sources[0]: must have exactly one of"},
		{"metadata without a key", "priority: {" + levels + ", sources: [{metadata: ns}]}", "priority.sources[0].metadata"},
		{"a bound below 0", "clusters: {chat: {lanes: {maxConcurrent: -1}}}", "clusters.chat.lanes.maxConcurrent"},
		{"a tenant's bound of 0", "tenant: {maxConcurrent: {acme: 0}}", "tenant.maxConcurrent.acme"},
		{"a bound of nobody", "tenant: {maxConcurrent: {'': 1}}", "tenants have names"},
		{"a bound that is none", "clusters: {chat: {lanes: {tenantMaxConcurrent: 1.5}}}", "clusters.chat.lanes.tenantMaxConcurrent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := loadText(t, test.text)
			switch {
			case test.fault == "" && err != nil:
				t.Errorf("%s\nis refused: %v", test.text, err)
			case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
				t.Errorf("%s\ngives %v, want %q", test.text, err, test.fault)
			}
		})
	}
}

func TestPriorityReachesEveryCluster(t *testing.T) {
	c, err := loadText(t, "priority: {levels: [{name: high, share: 6}, {name: low, share: 1}]}\nclusters: {chat: {lanes: {mode: enforce}}}")
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range []string{"chat", "another"} {
		if got := c.Cluster(cluster).Lanes.Levels; len(got) != 2 || got[0].Name != "high" || got[0].Share != 6 {
			t.Errorf("cluster %s has levels %v, want the two of the configuration", cluster, got)
		}
	}
	if got := c.Priority.Unnamed(); got != "low" {
		t.Errorf("unnamed requests are at %q, want the lowest level", got)
	}
}

func TestNotesOnPriority(t *testing.T) {
	for text, want := range map[string]string{
		"priority: {levels: [{name: a, share: 1}]}\nclusters: {'*': {lanes: {mode: enforce}}}":                    "priority.levels without priority.sources: all requests are at level a",
		"priority: {levels: [{name: a, share: 1}], sources: [{header: x}]}":                                       "priority.levels have no effect: no cluster has lanes.mode enforce",
		"clusters: {chat: {lanes: {maxConcurrent: 4}}}":                                                           "clusters.chat.lanes: maxConcurrent and tenantMaxConcurrent hold nobody back in mode shadow",
		"clusters: {'*': {lanes: {maxConcurrent: 4}}, chat: {lease: {mode: 'off'}}}":                              `clusters["*"].lanes: maxConcurrent and tenantMaxConcurrent hold nobody back in mode shadow`,
		"tenant: {maxConcurrent: {acme: 4}}":                                                                      "tenant.maxConcurrent has no effect without tenant.sources: all requests are anonymous",
		"priority: {levels: [{name: a, share: 1}], sources: [{metadata: envoy.filters.http.jwt_authn/priority}]}": "priority.sources[0].metadata envoy.filters.http.jwt_authn/priority has one key",
	} {
		c, err := loadText(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.Notes, "\n"); strings.Count(got, want) != 1 {
			t.Errorf("%s\ngives the notes\n%s\nwant once %q", text, got, want)
		}
	}
}
