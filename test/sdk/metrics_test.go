//go:build sdk

package sdk

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// readMetrics parses a page of OpenMetrics with the parser of the Python client library, which is stricter than Prometheus's,
// and prints what is in it.
const readMetrics = `
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = list(parse(sys.stdin.read()))
samples = [s for f in families for s in f.samples]
print(len(families), "families", len(samples), "samples", sum(1 for s in samples if s.exemplar), "exemplars")
`

// TestMetricsAreOpenMetrics: after traffic of all kinds the whole page is valid for a parser that others wrote, exemplars included.
func TestMetricsAreOpenMetrics(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "extproc")
	if err := stack.BuildSidecar(t.Context(), root, binary); err != nil {
		t.Fatalf("build the sidecar: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Overlay: settings, Binary: binary, Environ: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9", "OTEL_METRICS_EXPORTER=none", "OTEL_TRACES_SAMPLER=parentbased_always_on",
	}})
	if err != nil {
		t.Fatalf("start the stack: %v", err)
	}
	t.Cleanup(s.Stop)
	for _, c := range []struct {
		path string
		size int64
	}{{"/gateway/a", 10}, {"/gateway/b", 100 << 10}, {"/gateway/c", 2 << 20}, {"/full/d", 0}, {"/chat/e", 10}} {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Envoy.URL()+c.path, io.LimitReader(zeros{}, c.size))
		if err != nil {
			t.Fatal(err)
		}
		q.ContentLength = c.size
		q.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		response, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	q, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Sidecar.Config.Listen.Admin+"/metrics", nil)
	q.Header.Set("Accept", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	parser := exec.CommandContext(ctx, filepath.Join(root, ".tools/sdk/bin/python"), "-c", readMetrics)
	parser.Stdin = strings.NewReader(string(page))
	said, err := parser.CombinedOutput()
	if err != nil {
		t.Fatalf("%s is refused: %v\n%s", response.Header.Get("Content-Type"), err, said)
	}
	t.Logf("%s", said)
	for _, want := range []string{"headgate_decisions_total{", `reason="payload_too_large"`, "# {trace_id="} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %s: the traffic was not measured", want)
		}
	}
}
