//go:build cluster

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// tenantsAndLanes is what a user adds to a shipped configuration: where tenants come from, and a limit that fits the upstream.
func tenantsAndLanes(s settings) {
	s.at("tenant")["sources"] = []any{map[string]any{"header": "x-tenant-id"}}
	lanes := s.at("clusters", "chat", "lanes")
	lanes["minLimit"], lanes["initialLimit"], lanes["maxLimit"] = laneLimit, laneLimit, laneLimit
}

// laneLimit is in units of cost; a short chat costs a few.
const (
	laneLimit     = 8
	laneLimitText = "8"
)

// fromPrinted are the options of extproc envoy for an upstream in other pods.
var fromPrinted = []string{"--listen", "0.0.0.0:8080", "--upstream", "llm-gateway:8080"}

func TestBase(t *testing.T) {
	ns := namespace(t, "base")
	upstream(t, ns)
	overlay{
		shipped: "base", namespace: ns, settings: tenantsAndLanes, envoy: fromPrinted,
		patches: []string{lessCPU("gateway", "initContainers/0", "containers/0")},
	}.apply(t)
	ready(t, ns, "deploy/gateway")
	checkGateway(t, ns, "gateway", "chat")
	checkBudget(t, ns, "downward_api", 1<<30)
}

// TestShippedBase is the base with nothing changed but the requests of processor time.
func TestShippedBase(t *testing.T) {
	ns := namespace(t, "shipped")
	upstream(t, ns)
	overlay{shipped: "base", namespace: ns, patches: []string{lessCPU("gateway", "initContainers/0", "containers/0")}}.apply(t)
	ready(t, ns, "deploy/gateway")
	url := "http://gateway." + ns + ".svc.cluster.local"
	reachable(t, url)
	code, answer, err := post(t.Context(), client(), url+"/v1/chat/completions", "a", strings.NewReader(chat))
	if err != nil || code != http.StatusOK {
		t.Errorf("through the Service: %d %s (%v), want 200", code, answer, err)
	}
	for _, p := range pods(t, ns, "app.kubernetes.io/name=gateway") {
		if log := kubectl(t, "-n", ns, "logs", p, "-c", "extproc"); strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
			t.Errorf("the sidecar of %s warns: %s", p, log)
		}
	}
}

func TestGateway(t *testing.T) {
	monitoringKinds(t)
	ns := namespace(t, "gateway")
	upstream(t, ns)
	overlay{
		shipped: "overlays/gateway", namespace: ns, settings: tenantsAndLanes, envoy: fromPrinted,
		patches: []string{lessCPU("gateway", "initContainers/0", "containers/0")},
	}.apply(t)
	ready(t, ns, "deploy/gateway")
	checkGateway(t, ns, "gateway", "chat")
	for _, p := range pods(t, ns, "app.kubernetes.io/name=gateway") {
		checkScrape(t, podIP(t, ns, p))
	}
}

// reachable waits until a new Service has reached the name service and the rules of the proxy.
func reachable(t *testing.T, url string) {
	t.Helper()
	eventually(t, 30*time.Second, "the Service is there", func() error {
		conn, err := dial(t.Context(), "tcp", strings.TrimPrefix(url, "http://")+":80")
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// checkScrape checks that a pod's metrics are there for a scraper, and nothing else.
func checkScrape(t *testing.T, ip string) {
	t.Helper()
	for path, want := range map[string]int{"/metrics": 200, "/config": 404, "/debug/pprof/": 404} {
		r, err := client().Get("http://" + ip + ":9005" + path)
		if err != nil {
			t.Errorf("scrape %s: %v", path, err)
			continue
		}
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if r.StatusCode != want || want == 200 && !strings.Contains(string(text), "headgate_decisions_total{") {
			t.Errorf("scrape %s: %d %.100s, want %d", path, r.StatusCode, text, want)
		}
	}
	if r, err := client().Get("http://" + ip + ":9003/config"); err == nil {
		_ = r.Body.Close()
		t.Errorf("the admin port answers on the pod's address: %d", r.StatusCode)
	}
}

// checkGateway sends through a Service what a gateway is for: requests of tenants, a body that is too large, and more at once
// than the lane of the route cluster lets in.
func checkGateway(t *testing.T, namespace, service, cluster string) {
	t.Helper()
	url := "http://" + service + "." + namespace + ".svc.cluster.local"
	c := client()
	reachable(t, url)
	for _, tenant := range []string{"team-a", "team-b"} {
		code, answer, err := post(t.Context(), c, url+"/v1/chat/completions", tenant, strings.NewReader(chat))
		if err != nil || code != http.StatusOK {
			t.Fatalf("%s through the Service: %d %s (%v), want 200", tenant, code, answer, err)
		}
	}
	code, answer, err := post(t.Context(), c, url+"/v1/files", "team-a", io.LimitReader(zeros{}, 60<<20))
	cut := err != nil && (strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe")) // while it still sent
	if !cut && (err != nil || code != http.StatusRequestEntityTooLarge) {
		t.Errorf("60 MiB without a declared length: %d %.100s (%v), want 413", code, answer, err)
	}
	checkDeclared(t, url)
	checkLanes(t, namespace, url, cluster)
}

// checkDeclared declares a body that is too large: the refusal comes before any of it is sent.
func checkDeclared(t *testing.T, url string) {
	t.Helper()
	if err := declared(t.Context(), strings.TrimPrefix(url, "http://")+":80", 60<<20, "HTTP/1.1 413"); err != nil {
		t.Error(err)
	}
}

// declared sends the head of a request with a body of that length and compares the beginning of the answer.
func declared(ctx context.Context, address string, length int, want string) error {
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", length); err != nil {
		return err
	}
	line := make([]byte, len(want))
	if _, err := io.ReadFull(conn, line); err != nil || string(line) != want {
		return fmt.Errorf("a declared length of %d bytes: %q (%w), want %s", length, line, err, want)
	}
	return nil
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// checkLanes sends each pod more requests of two tenants at once than its lanes let in, and looks at one sidecar while
// they wait: they queue by tenant, and all are answered.
func checkLanes(t *testing.T, namespace, url, cluster string) {
	t.Helper()
	all := pods(t, namespace, "app.kubernetes.io/name=gateway")
	if len(all) == 0 {
		t.Fatal("no pods of the gateway")
	}
	sidecar := adminURL(t, namespace, all[0])
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var sent sync.WaitGroup
	failed := make(chan error, 10_000)
	var enough atomic.Bool
	for i := range 24 * len(all) {
		sent.Go(func() {
			c := client()
			c.Transport.(*http.Transport).DisableKeepAlives = true // so that all pods get some, also those that came last
			for !enough.Load() {
				requestOf(ctx, c, url, []string{"team-a", "team-b"}[i%2], failed)
			}
		})
	}
	eventually(t, 30*time.Second, "lanes at work in "+all[0], func() error {
		h, err := health(ctx, sidecar)
		if err != nil {
			return err
		}
		lanes := h.AdaptiveAdmission[cluster]
		switch {
		case lanes.Mode != "enforce":
			return fmt.Errorf("mode %q of %s, want enforce: %+v", lanes.Mode, cluster, h.AdaptiveAdmission)
		case lanes.ActiveCount > laneLimit:
			t.Errorf("%d active, want at most the limit of %d", lanes.ActiveCount, laneLimit)
		case len(lanes.LaneTenants) < 2:
			return fmt.Errorf("%d tenants wait, want 2: %+v", len(lanes.LaneTenants), lanes)
		}
		return nil
	})
	checkLog(t, namespace, all)
	enough.Store(true)
	sent.Wait()
	close(failed)
	for err := range failed {
		t.Errorf("a request: %v", err)
	}
	eventually(t, 20*time.Second, "nothing left in the lanes", func() error {
		h, err := health(ctx, sidecar)
		if l := h.AdaptiveAdmission[cluster]; err == nil && l.ActiveCount+l.QueuedCount+l.LaneQueuedCount != 0 {
			return fmt.Errorf("left: %+v", l)
		}
		return err
	})
}

// requestOf sends one chat that takes a while; under load it may be refused.
func requestOf(ctx context.Context, c *http.Client, url, tenant string, failed chan<- error) {
	code, answer, err := post(ctx, c, url+"/v1/chat/completions?n=10&ms=60", tenant, strings.NewReader(chat))
	if err != nil || code != http.StatusOK && code != http.StatusServiceUnavailable {
		failed <- fmt.Errorf("%d %s (%w)", code, answer, err)
	}
}

var laneInLog = regexp.MustCompile(`lane=(lane_[0-9a-f]+)`)

// checkLog checks that the access log of each Envoy tells the two tenants apart without naming them.
func checkLog(t *testing.T, namespace string, all []string) {
	t.Helper()
	eventually(t, 30*time.Second, "both tenants in the log", func() error { // Envoy writes it every few seconds
		seen := map[string]bool{}
		for _, p := range all {
			log := kubectl(t, "-n", namespace, "logs", p, "-c", "envoy")
			for _, m := range laneInLog.FindAllStringSubmatch(log, -1) {
				seen[p+m[1]] = true
			}
			if strings.Contains(log, "team-a") {
				t.Errorf("the log of %s names a tenant", p)
			}
		}
		if len(seen) != 2*len(all) {
			return fmt.Errorf("%d lanes in %d pods, want the 2 tenants in each: %v", len(seen), len(all), seen)
		}
		return nil
	})
}

// checkBudget checks what every sidecar takes for the memory of what it protects.
func checkBudget(t *testing.T, namespace, source string, ceiling int64) {
	t.Helper()
	for _, p := range pods(t, namespace, "app.kubernetes.io/name=gateway") {
		h, err := health(t.Context(), adminURL(t, namespace, p))
		if err != nil {
			t.Fatal(err)
		}
		if h.ChatAdmission.BudgetSource != source || h.ChatAdmission.EffectiveCeiling != ceiling {
			t.Errorf("%s: the budget derives from %s, %d bytes; want %s, %d", p, h.ChatAdmission.BudgetSource, h.ChatAdmission.EffectiveCeiling, source, ceiling)
		}
	}
}

// monitoringKinds gives the API server the kinds of the Prometheus operator, with any content: the schemas are test/manifests'
// matter.
func monitoringKinds(t *testing.T) {
	t.Helper()
	for kind, plural := range map[string]string{"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"} {
		apply(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: %[1]s, plural: %[2]s}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, kind, plural))
		kubectl(t, "wait", "--for=condition=Established", "crd/"+plural+".monitoring.coreos.com", "--timeout=30s")
	}
}
