package manifests

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const monitoring = k8s + "components/monitoring/"

// prometheusRule wraps the alert rules for the Prometheus operator.
func prometheusRule(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(monitoring + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, groups, found := strings.Cut(string(text), "\ngroups:\n")
	if !found {
		t.Fatal("alerts.yaml has no groups")
	}
	var b strings.Builder
	b.WriteString("# Printed from alerts.yaml by `go test . -update` in test/manifests.\napiVersion: monitoring.coreos.com/v1\n" +
		"kind: PrometheusRule\nmetadata:\n  name: headgate\nspec:\n  groups:\n")
	for line := range strings.Lines(groups) {
		b.WriteString("  " + line)
	}
	return b.String()
}

// expression is a query, and where it is.
type expression struct{ where, query string }

func alerts(t *testing.T) []expression {
	t.Helper()
	groups, errs := rulefmt.ParseFile(monitoring+"alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	var all []expression
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			all = append(all, expression{"alert " + r.Alert, r.Expr})
		}
	}
	return all
}

func panels(t *testing.T) []expression {
	t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var all []expression
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, expression{"panel " + p.Title, grafana.Replace(target.Expr)})
		}
	}
	for _, v := range dashboard.Templating.List {
		if series, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			all = append(all, expression{"variable " + v.Name, series[:strings.LastIndex(series, ",")]})
		}
	}
	return all
}

// added is what Prometheus adds to everything it scrapes from a pod, and to histograms.
var added = []string{"namespace", "pod", "le"}

// TestQueriesNameWhatIsMeasured checks queries against what a sidecar serves at /metrics.
func TestQueriesNameWhatIsMeasured(t *testing.T) {
	served := scrape(t)
	used := map[string]bool{}
	for _, e := range slices.Concat(alerts(t), panels(t)) {
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(e.query)
		if err != nil {
			t.Errorf("%s: %v\n%s", e.where, err, e.query)
			continue
		}
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				known, ok := served[n.Name]
				used[n.Name] = true
				if !ok {
					t.Errorf("%s: nobody serves %s", e.where, n.Name)
					return nil
				}
				for _, m := range n.LabelMatchers {
					if m.Name != model.MetricNameLabel && !slices.Contains(known, m.Name) && !slices.Contains(added, m.Name) {
						t.Errorf("%s: %s has no label %s, only %v", e.where, n.Name, m.Name, known)
					}
				}
			case *parser.AggregateExpr:
				parser.Inspect(n.Expr, func(inner parser.Node, _ []parser.Node) error {
					s, ok := inner.(*parser.VectorSelector)
					for _, by := range n.Grouping {
						if ok && !slices.Contains(served[s.Name], by) && !slices.Contains(added, by) {
							t.Errorf("%s: grouped by %s, which %s does not have, only %v", e.where, by, s.Name, served[s.Name])
						}
					}
					return nil
				})
			}
			return nil
		})
	}
	base := regexp.MustCompile(`_(bucket|count|sum)$`)
	for name := range used {
		used[base.ReplaceAllString(name, "")] = true
	}
	for name := range served {
		if strings.HasPrefix(name, "headgate_") && !base.MatchString(name) && !used[name] && !used[name+"_bucket"] {
			t.Errorf("%s is served, but neither on the dashboard nor in an alert", name)
		}
	}
}

func TestPrometheusRuleHasTheAlerts(t *testing.T) {
	var plain, operator struct{ Groups any }
	text, err := os.ReadFile(monitoring + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	rules := only[*monitoringv1.PrometheusRule](build(t, "overlays/gateway"))
	if len(rules) != 1 {
		t.Fatalf("the gateway overlay has %d PrometheusRules, want 1", len(rules))
	}
	spec, err := yaml.Marshal(rules[0].Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(spec, &operator); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain, operator); diff != "" {
		t.Errorf("rules differ (-alerts.yaml +PrometheusRule):\n%s", diff)
	}
}

// exposition is what a sidecar serves at /metrics, in Prometheus's text format.
func exposition(t *testing.T) io.Reader {
	t.Helper()
	answer := httptest.NewRecorder()
	measured(t).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	return answer.Body
}

// scrape returns the metrics that a sidecar serves, with the names of their labels.
func scrape(t *testing.T) map[string][]string {
	t.Helper()
	textParser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := textParser.TextToMetricFamilies(exposition(t))
	if err != nil {
		t.Fatal(err)
	}
	served := map[string][]string{}
	for name, family := range families {
		var known []string
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				known = append(known, l.GetName())
			}
		}
		slices.Sort(known)
		known = slices.Compact(known)
		served[name] = known
		if family.GetType().String() == "HISTOGRAM" {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				served[name+suffix] = known
			}
		}
	}
	return served
}
