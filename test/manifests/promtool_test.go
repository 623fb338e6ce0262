package manifests

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// promtool runs Prometheus's own tool, which is built the first time: that takes minutes.
func promtool(t *testing.T, stdin io.Reader, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", append([]string{"tool", "promtool"}, args...)...)
	c.Dir, c.Stdin = "../../tools/promtool", stdin
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMetricsArePromtoolClean(t *testing.T) {
	promtool(t, exposition(t), "check", "metrics")
}

// TestAlertsFireForWhatTheyAreFor runs the scenarios of alerts_test.yaml, of which every alert has one.
func TestAlertsFireForWhatTheyAreFor(t *testing.T) {
	const scenarios = "testdata/alerts_test.yaml"
	text, err := os.ReadFile(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		name := strings.TrimPrefix(a.where, "alert ")
		if !strings.Contains(string(text), `{alertname="`+name+`"}`) {
			t.Errorf("%s fires in no scenario", name)
		}
	}
	theSeriesAreServed(t, text)
	promtool(t, nil, "check", "rules", absolute(t, monitoring+"alerts.yaml"))
	promtool(t, nil, "test", "rules", absolute(t, scenarios))
}

// theSeriesAreServed checks that scenarios speak of series as a sidecar serves them, and Prometheus labels them.
func theSeriesAreServed(t *testing.T, scenarios []byte) {
	t.Helper()
	var file struct {
		Tests []struct {
			Name   string
			Series []struct{ Series string } `json:"input_series"`
		}
	}
	if err := yaml.Unmarshal(scenarios, &file); err != nil {
		t.Fatal(err)
	}
	served := scrape(t)
	for _, scenario := range file.Tests {
		for _, s := range scenario.Series {
			m, err := parser.NewParser(parser.Options{}).ParseMetric(s.Series)
			if err != nil {
				t.Errorf("%s: %s: %v", scenario.Name, s.Series, err)
				continue
			}
			known, ok := served[m.Get(model.MetricNameLabel)]
			if !ok {
				t.Errorf("%s: nobody serves %s", scenario.Name, s.Series)
			}
			for label := range m.Map() {
				if label != model.MetricNameLabel && !slices.Contains(known, label) && !slices.Contains(added, label) {
					t.Errorf("%s: %s has labels %v, not %s", scenario.Name, s.Series, known, label)
				}
			}
		}
	}
}
