package docs

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3" // in the example
	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/internal/stack"
)

// TestMetricsTable: telemetry.md has every metric with its type, labels and description.
func TestMetricsTable(t *testing.T) {
	generated(t, "telemetry.md", "metrics", metricsTable(t))
}

var (
	sample = regexp.MustCompile(`^(headgate_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	label  = regexp.MustCompile(`(\w+)="`)
)

func metricsTable(t *testing.T) string {
	type family struct{ help, kind, labels string }
	families := map[string]*family{}
	for line := range strings.Lines(scrape(t)) {
		if name, help, ok := strings.Cut(strings.TrimPrefix(line, "# HELP "), " "); ok && strings.HasPrefix(line, "# HELP headgate_") {
			families[name] = &family{help: strings.TrimSpace(help)}
		} else if name, kind, ok := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " "); ok && strings.HasPrefix(line, "# TYPE headgate_") {
			families[name].kind = strings.TrimSpace(kind)
		} else if m := sample.FindStringSubmatch(line); m != nil {
			var labels []string
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				if l[1] != "le" {
					labels = append(labels, "`"+l[1]+"`")
				}
			}
			families[m[1]].labels = strings.Join(labels, ", ")
		}
	}
	var names []string
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, name := range names {
		f := families[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, f.kind, f.labels, f.help)
	}
	return b.String()
}

// TestSpansAreDescribed: telemetry.md has the attributes and events that the code puts on spans, and no others.
func TestSpansAreDescribed(t *testing.T) {
	source := read(t, filepath.Join("..", "pkg", "extproc", "tracing.go")) + read(t, filepath.Join("..", "pkg", "extproc", "reservation.go")) +
		read(t, filepath.Join("..", "pkg", "extproc", "lanes.go"))
	find := func(pattern string) (found []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(source, -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	described := func(head string) (found []string) {
		_, table, _ := strings.Cut(read(t, "telemetry.md"), head)
		table, _, _ = strings.Cut(table, "\n\n")
		for line := range strings.Lines(table) {
			if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
				found = append(found, strings.Split(cell, "`, `")...)
			}
		}
		slices.Sort(found)
		return found
	}
	events := append(find(`(?:AddEvent|bytesEvent|laneEvent)\("([^"]+)"`), "exception") // RecordError's
	slices.Sort(events)
	if diff := cmp.Diff(events, described("| event | when |")); diff != "" {
		t.Errorf("telemetry.md does not have the events of the code (-code +page):\n%s", diff)
	}
	conventions := map[string]string{ // of the constants that the code uses
		"RPCSystemNameGRPC": "rpc.system.name", "RPCMethod": "rpc.method", "HTTPRequestBodySize": "http.request.body.size",
		"HTTPResponseStatusCode": "http.response.status_code", "ErrorTypeKey": "error.type",
	}
	want := find(`note\(attribute\.\w+\("([^"]+)"`)
	for _, constant := range find(`note\(semconv\.(\w+)`) {
		want = append(want, conventions[constant])
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, described("| attribute | of |")); diff != "" {
		t.Errorf("telemetry.md does not have the attributes of the code (-code +page):\n%s", diff)
	}
}

// TestTracingExample: with what the page shows, spans of Envoy and of the sidecar reach the collector in one trace.
func TestTracingExample(t *testing.T) {
	if *update { // make generate needs no programs
		return
	}
	var mu sync.Mutex
	traces := map[string][]string{} // services by trace
	collecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if q.URL.Path != "/v1/traces" {
			return // metrics
		}
		got := &collector.ExportTraceServiceRequest{}
		if err := proto.Unmarshal(body, got); err != nil {
			t.Errorf("decode an export: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range got.ResourceSpans {
			service := ""
			for _, a := range of.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, in := range of.ScopeSpans {
				for _, s := range in.Spans {
					traces[string(s.TraceId)] = append(traces[string(s.TraceId)], service)
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collecting.Close()
	addr := collecting.Listener.Addr().String()
	_, port, _ := strings.Cut(addr, ":")

	s, err := stack.Start(t.Context(), stack.Options{
		Binary: sidecar(t.Context(), t), Environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + addr, "OTEL_BSP_SCHEDULE_DELAY=50"},
		Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
			return graft(b, strings.ReplaceAll(exampleOf(t, 0), "4318", port), strings.ReplaceAll(exampleOf(t, 1), "4318", port))
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for range 100 { // a tenth of them is traced
		answer, err := http.Get(s.Envoy.URL() + "/")
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("a request: %v (%v), want 200", answer, err)
		}
		_ = answer.Body.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		mu.Lock()
		for _, services := range traces {
			if slices.Contains(services, "ingress") && slices.Contains(services, "headgate") {
				mu.Unlock()
				return
			}
		}
		mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("20 s after a request: services by trace %q, want ingress and headgate in one", traces)
		}
	}
}

// exampleOf is the nth YAML example of telemetry.md.
func exampleOf(t *testing.T, n int) string {
	t.Helper()
	examples := slices.DeleteFunc(blocks(t, "telemetry.md"), func(b block) bool { return b.info != "yaml" })
	return examples[n].text
}

// graft puts settings into the HTTP connection manager and adds a cluster, both as YAML.
func graft(b *stack.Bootstrap, manager, cluster string) error {
	text, err := b.Marshal()
	if err != nil {
		return err
	}
	var all, more, added map[string]any
	if err := errors.Join(yaml.Unmarshal(text, &all), yaml.Unmarshal([]byte(manager), &more), yaml.Unmarshal([]byte(cluster), &added)); err != nil {
		return err
	}
	static := all["static_resources"].(map[string]any)
	static["clusters"] = append(static["clusters"].([]any), added)
	filter := static["listeners"].([]any)[0].(map[string]any)["filter_chains"].([]any)[0].(map[string]any)["filters"].([]any)[0].(map[string]any)
	for key, value := range more {
		filter["typed_config"].(map[string]any)[key] = value
	}
	if text, err = yaml.Marshal(all); err != nil {
		return err
	}
	grafted, err := stack.ParseBootstrap(text)
	if err != nil {
		return err
	}
	*b = *grafted
	return nil
}
