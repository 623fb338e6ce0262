package manifests

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
	"github.com/headgate/headgate/pkg/telemetry"
)

// TestNoMemoryLimitFiresWhereThereIsNone: with the manifests as they are the alert is silent; without the limit of the protected
// container, for which the downward API then gives what the node has to give, it fires. What the sidecar serves in each case is
// put before the shipped rule.
func TestNoMemoryLimitFiresWhereThereIsNone(t *testing.T) {
	machine := memory.ReadCeiling(budget.DefaultSettings().Budget, func(string) string { return "" }).Physical
	if machine < 8<<30 {
		t.Skipf("a machine of %d bytes is too small for the limits of the manifests", machine)
	}
	allocatable := size.Bytes(machine / 100 * 92) // less what the node keeps for itself
	var scenarios bytes.Buffer
	fmt.Fprintf(&scenarios, "rule_files: [%s]\ntests:\n", absolute(t, monitoring+"alerts.yaml"))
	checked := 0
	for _, overlay := range overlays {
		for _, p := range pods(build(t, overlay)) {
			c := p.container("extproc")
			if c == nil {
				continue
			}
			checked++
			s := sidecarConfig(t, overlay, p, *c).Bytes.Budget
			s.CgroupPID = 0 // of a process that does not run here: then the downward API's figure counts
			writeScenario(t, &scenarios, overlay+", as shipped", s, "[]")
			s.ProtectedMemory = &allocatable
			writeScenario(t, &scenarios, overlay+", without the limit", s, `[{labels: '{alertname="HeadgateNoMemoryLimit"}', value: 1}]`)
		}
	}
	if checked < len(overlays) {
		t.Errorf("%d sidecars in %d overlays, want one in each", checked, len(overlays))
	}
	path := filepath.Join(t.TempDir(), "scenarios.yaml")
	if err := os.WriteFile(path, scenarios.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, nil, "test", "rules", path)
}

// writeScenario writes a scenario of promtool: a sidecar with these settings, and what fires after a while.
func writeScenario(t *testing.T, to *bytes.Buffer, name string, s memory.BudgetSettings, want string) {
	t.Helper()
	b := memory.ReadCeiling(s, func(string) string { return "" }).Budget(s)
	c := budget.New(budget.DefaultSettings(), b, nil)
	m, err := telemetry.NewMetrics(telemetry.MetricsOptions{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Shutdown(context.Background()) }()
	m.Observe(telemetry.Sources{Bytes: c.Snapshot})
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	textParser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := textParser.TextToMetricFamilies(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(to, "- name: %s\n  interval: 1m\n  input_series:\n", name)
	for _, metric := range []string{"headgate_budget_limit_bytes", "headgate_budget_used_bytes", "headgate_build_info"} {
		for _, one := range families[metric].GetMetric() {
			labels := []string{`namespace="a"`, `pod="p"`}
			for _, l := range one.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			fmt.Fprintf(to, "  - series: '%s{%s}'\n    values: '%.0fx60'\n", metric, strings.Join(labels, ","), one.GetGauge().GetValue())
		}
	}
	fmt.Fprintf(to, "  promql_expr_test:\n  - expr: count by (alertname) (ALERTS{alertstate=\"firing\"})\n    eval_time: 40m\n    exp_samples: %s\n", want)
}
