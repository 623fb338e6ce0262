package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
	"github.com/headgate/headgate/pkg/lease"
)

// TestRunbookHasEveryReason: the runbook has one section for each reason, in the order of the table, and for no other.
func TestRunbookHasEveryReason(t *testing.T) {
	var want, got []string
	for _, v := range extproc.Verdicts() {
		want = append(want, v.Reason)
	}
	sections := regexp.MustCompile("(?m)^### `(.+)`\n\n(\\d+)")
	status := map[string]string{}
	for _, m := range sections.FindAllStringSubmatch(read(t, "operations.md"), -1) {
		got = append(got, m[1])
		status[m[1]] = m[2]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations.md does not have the reasons of the verdict table (-want +got):\n%s", diff)
	}
	for _, v := range extproc.Verdicts() {
		if s := strconv.Itoa(v.HTTP); status[v.Reason] != s {
			t.Errorf("operations.md says %s for %s, want %s", status[v.Reason], v.Reason, s)
		}
	}
}

// TestClientsGetEveryAnswer: the page for client authors has every reason of leases with its status.
func TestClientsGetEveryAnswer(t *testing.T) {
	got := map[string]string{}
	for _, row := range rows(t, "leases-clients.md") {
		if len(row) == 4 && strings.HasPrefix(row[1], "`LEASE_") {
			got[strings.Trim(row[1], "`")] = row[0]
		}
	}
	want := map[string]string{}
	for _, a := range lease.Answers() {
		want[string(a.Reason)] = strconv.Itoa(a.HTTP)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("leases-clients.md has other answers than the lease API (-want +got):\n%s", diff)
	}
}

var section = regexp.MustCompile(`(?m)^(listen|routeCluster|tenant|principalSources|decision|bytes|pressure|clusters|leases|principals|fanout|priority|shutdown|telemetry|log):`)

// TestConfigurationsLoad: every example of a configuration is one. Other YAML, of Envoy or Kubernetes, has none of the
// configuration's sections.
func TestConfigurationsLoad(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			if b.info != "yaml" || !section.MatchString(b.text) {
				continue
			}
			n++
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(file, nil); err != nil {
				t.Errorf("%s: %v\n%s", page, err, b.text)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d configurations found, want at least 8", n)
	}
}

// TestMigrationTable: the variables of the reference system, as the schema has them.
func TestMigrationTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| variable | key | default | value |\n|---|---|---|---|\n")
	for _, row := range reference(t) {
		for name := range strings.SplitSeq(row[3], ", ") {
			bare, ms := strings.CutSuffix(name, " (ms)")
			if !strings.HasPrefix(bare, "`OMNIROUTE_") && !strings.HasPrefix(bare, "`ADAPTIVE_") {
				continue
			}
			value := row[1]
			if ms {
				value = "whole milliseconds"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", bare, row[0], row[2], value)
		}
	}
	generated(t, "migration.md", "variables", b.String())
}

var variable = regexp.MustCompile(`\b(HEADGATE|OMNIROUTE|ADAPTIVE)_[A-Z0-9_]*[A-Z0-9]\b`)

// TestVariablesExist: every variable that a page names is one.
func TestVariablesExist(t *testing.T) {
	known := read(t, "configuration.md")
	for _, page := range pages(t) {
		for _, name := range variable.FindAllString(read(t, page), -1) {
			if !strings.Contains(known, "`"+name+"`") {
				t.Errorf("%s names %s, which means nothing", page, name)
			}
		}
	}
}

var key = regexp.MustCompile(`^(listen|routeCluster|tenant|decision|bytes|pressure|lanes|lease|leases|principals|fanout|shutdown|telemetry|log)\.[\w.\[\]]+$`)

// TestKeysExist: every key that a page names is one. Those of a route cluster are named from "lanes" on.
func TestKeysExist(t *testing.T) {
	known := read(t, "configuration.md")
	for _, page := range pages(t) {
		for _, text := range code(t, page) {
			name, _, _ := strings.Cut(text, ":") // `bytes.releaseAt: responseStart`
			if !key.MatchString(name) || strings.HasSuffix(name, ".go") {
				continue
			}
			if !strings.Contains(known, "`"+name+"`") && !strings.Contains(known, "`"+name+".") && !strings.Contains(known, "`clusters.<name>."+name+"`") {
				t.Errorf("%s names the key %s, which does not exist", page, name)
			}
		}
	}
}

// TestBudgetTable: what the defaults make of usual memory limits.
func TestBudgetTable(t *testing.T) {
	s := config.Default().Bytes
	var b strings.Builder
	b.WriteString("| memory limit | budget | bodies of 1 MiB at once | largest body ever admitted |\n|---|---|---|---|\n")
	for _, gib := range []int64{256, 512, 1024, 1600, 2048, 4096, 8192, 16384, 65536} {
		limit := gib << 20
		c := memory.Ceiling{Limits: []memory.Limit{{Source: memory.SourceDownwardAPI, Bytes: limit}}}
		got := c.Budget(s.Budget).Bytes
		fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", size.Bytes(limit), size.Bytes(got), got>>20, size.Bytes(min(got, int64(s.HardMaxBody))))
	}
	generated(t, "operations.md", "budgets", b.String())
}

// TestCostTable: the prices in the page on tuning are those that requests pay.
func TestCostTable(t *testing.T) {
	n := 0
	for _, row := range rows(t, "tuning.md") {
		if len(row) != 7 || row[0] == "bytes" {
			continue
		}
		n++
		number := func(i int) int64 {
			v, err := strconv.ParseInt(row[i], 10, 64)
			if err != nil {
				t.Fatalf("%v: %v", row, err)
			}
			return v
		}
		got := adaptive.Cost(adaptive.Features{
			Bytes: number(0), Tokens: number(1), Messages: number(2), Tools: number(3), Fanout: number(4), Stream: row[5] == "yes",
		})
		if want := int(number(6)); got != want {
			t.Errorf("%v costs %d, the page says %d", row, got, want)
		}
	}
	if n < 6 {
		t.Errorf("%d rows with a price, want at least 6", n)
	}
}

// TestStepReasons: the page on tuning explains every reason of a step of the limit.
func TestStepReasons(t *testing.T) {
	explained := code(t, "tuning.md")
	for _, r := range []adaptive.StepReason{
		adaptive.StepHold, adaptive.StepFrozen, adaptive.StepCritical, adaptive.StepPressure, adaptive.StepOverload,
		adaptive.StepLatency, adaptive.StepRestore, adaptive.StepEase, adaptive.StepGrow, adaptive.StepRecover,
	} {
		if !slices.Contains(explained, string(r)) {
			t.Errorf("tuning.md does not explain %q", r)
		}
	}
}

// TestAlerts: the runbook has a line for every alert that ships, and for no other.
func TestAlerts(t *testing.T) {
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, "../deploy/k8s/components/monitoring/alerts.yaml"), -1) {
		want = append(want, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Headgate\\w+)` \\|").FindAllStringSubmatch(read(t, "operations.md"), -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations.md explains other alerts than there are (-want +got):\n%s", diff)
	}
}

// TestLinksFromOutside: whatever ships links into the repository only to what is there, at a heading that is there. Every alert
// has a runbook_url, and what it leads to has the alert's name; the dashboard has the runbook.
func TestLinksFromOutside(t *testing.T) {
	const repository = "https://github.com/headgate/headgate/blob/main/"
	link := regexp.MustCompile(regexp.QuoteMeta(repository) + "([\\w./-]+)(?:#([\\w-]+))?")
	check := func(where, text string) (targets []string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join("..", strings.TrimSuffix(m[1], "."))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", where, m[0])
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(t, target), m[2]) {
				t.Errorf("%s links to #%s in %s, which has no such heading", where, m[2], target)
			}
			targets = append(targets, target)
		}
		return targets
	}
	n := 0
	err := filepath.WalkDir("../deploy", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json", ".tpl", ".txt", ".md"}, filepath.Ext(path)) {
			return err
		}
		n += len(check(path, read(t, path)))
		return nil
	})
	if err != nil || n < 20 {
		t.Errorf("%d links in what ships (%v), want at least 20", n, err)
	}
	const monitoring = "../deploy/k8s/components/monitoring/"
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, monitoring+"alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue
			}
			alerts++
			targets := check(rule.Alert, rule.Annotations["runbook_url"])
			if len(targets) != 1 || !strings.Contains(read(t, targets[0]), "`"+rule.Alert+"`") {
				t.Errorf("the runbook_url of %s is %q, want a page that has the alert", rule.Alert, rule.Annotations["runbook_url"])
			}
		}
	}
	if alerts < 10 {
		t.Errorf("%d alerts, want at least 10", alerts)
	}
	var dashboard struct {
		Links []struct{ URL string }
	}
	if err := json.Unmarshal([]byte(read(t, monitoring+"dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Links) == 0 || len(check("the dashboard", dashboard.Links[0].URL)) != 1 {
		t.Errorf("the dashboard's links are %v, want the runbook", dashboard.Links)
	}
}

var fragment = regexp.MustCompile(`\]\(([\w./-]*\.md)?#([^)]+)\)`)

// TestAnchors: links into a page lead to one of its headings.
func TestAnchors(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range fragment.FindAllStringSubmatch(read(t, page), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if !slices.Contains(anchors(t, target), m[2]) {
				t.Errorf("%s links to #%s in %s, which has no such heading", page, m[2], target)
			}
		}
	}
}

// anchors are the names by which a page's headings can be linked.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(prose(t, page)) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			found = append(found, anchor(strings.TrimSpace(heading)))
		}
	}
	return found
}

func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, strings.ToLower(heading))
}
