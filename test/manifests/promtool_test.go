package manifests

import (
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
	answer := httptest.NewRecorder()
	measured(t).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	promtool(t, answer.Body, "check", "metrics")
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
	promtool(t, nil, "check", "rules", absolute(t, monitoring+"alerts.yaml"))
	promtool(t, nil, "test", "rules", absolute(t, scenarios))
}
