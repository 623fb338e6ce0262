//go:build cluster

package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gatewayOf starts the gateway with two pods, with a user's patches, and returns its namespace and its URL.
func gatewayOf(t *testing.T, prefix string, patches ...string) (ns, url string) {
	t.Helper()
	ns = namespace(t, prefix)
	upstream(t, ns)
	overlay{
		shipped: "overlays/gateway", namespace: ns, settings: tenantsAndLanes, envoy: fromPrinted,
		patches: append(patches, lessCPU("gateway", "initContainers/0", "containers/0"), "- patch: |\n    $patch: delete\n    apiVersion: autoscaling/v2\n    kind: HorizontalPodAutoscaler\n    metadata: {name: gateway}\n"),
	}.apply(t)
	kubectl(t, "-n", ns, "scale", "deploy/gateway", "--replicas=2")
	ready(t, ns, "deploy/llm-gateway")
	ready(t, ns, "deploy/gateway")
	url = "http://gateway." + ns + ".svc.cluster.local"
	eventually(t, 30*time.Second, "the Service answers", func() error {
		code, _, err := post(t.Context(), client(), url+"/", "a", strings.NewReader("x"))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
	return ns, url
}

// TestConfigurationChanges: an edit of the config map arrives in every pod; a faulty one fails no probe and restarts nothing,
// the old configuration serves, and the fault is in health and in the metric that the alert HeadgateReloadFailed reads.
func TestConfigurationChanges(t *testing.T) {
	monitoringKinds(t)
	ns, url := gatewayOf(t, "config")
	all := pods(t, ns, "app.kubernetes.io/name=gateway")
	sidecars := map[string]string{}
	before := map[string]string{}
	for _, p := range all {
		sidecars[p] = adminURL(t, ns, p)
		h, err := health(t.Context(), sidecars[p])
		if err != nil {
			t.Fatal(err)
		}
		before[p] = h.Config.Hash
	}
	good := kubectl(t, "-n", ns, "get", "configmap", "headgate-config", "-o", `jsonpath={.data.headgate\.yaml}`) + "\n"
	change := func(text string) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"data": map[string]string{"headgate.yaml": text}})
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, "-n", ns, "patch", "configmap", "headgate-config", "--type=merge", "-p", string(patch))
	}

	began := time.Now()
	change(good + "bytes: {hardMaxBody: 1MiB}\n")
	for _, p := range all {
		eventually(t, 3*time.Minute, "the edit in "+p, func() error {
			h, err := health(t.Context(), sidecars[p])
			if err == nil && h.Config.Hash == before[p] {
				err = fmt.Errorf("still %s", h.Config.Hash)
			}
			before[p] = h.Config.Hash
			return err
		})
	}
	t.Logf("the edit is in force everywhere after %v", time.Since(began).Round(time.Second))
	if code, _, err := post(t.Context(), client(), url+"/v1/files", "a", strings.NewReader(strings.Repeat("x", 2<<20))); err != nil || code != http.StatusRequestEntityTooLarge {
		t.Errorf("2 MiB under the new limit of 1 MiB: %d (%v), want 413", code, err)
	}

	change(good + "bytes: {hardMaxBody: many}\nlisten: {admin: nowhere}\n")
	for _, p := range all {
		eventually(t, 3*time.Minute, "the fault in the health of "+p, func() error {
			h, err := health(t.Context(), sidecars[p])
			if err == nil && (h.Config.LastSuccess || !strings.Contains(h.Config.LastError, "hardMaxBody")) {
				err = fmt.Errorf("health says %+v", h.Config)
			}
			if h.Config.Hash != before[p] {
				t.Errorf("%s runs configuration %s, want the old one, %s", p, h.Config.Hash, before[p])
			}
			return err
		})
	}
	for range 15 { // longer than any probe takes to give up
		time.Sleep(time.Second)
		if state := kubectl(t, "-n", ns, "get", "deploy", "gateway", "-o", "jsonpath={.status.readyReplicas}"); state != "2" {
			t.Fatalf("%s pods are ready with a faulty config map, want 2", state)
		}
	}
	for _, p := range all {
		for container, n := range restarts(t, ns, p) {
			if n != 0 {
				t.Errorf("%s of %s was restarted %d times", container, p, n)
			}
		}
		if text := scrape(t, podIP(t, ns, p)); !strings.Contains(text, "\nheadgate_config_last_reload_successful 0") {
			t.Errorf("%s: headgate_config_last_reload_successful is not 0, so no alert fires", p)
		}
	}
	if code, answer, err := post(t.Context(), client(), url+"/v1/chat/completions", "a", strings.NewReader(chat)); err != nil || code != http.StatusOK {
		t.Errorf("with a faulty config map: %d %s (%v), want 200", code, answer, err)
	}
}

func scrape(t *testing.T, ip string) string {
	t.Helper()
	r, err := client().Get("http://" + ip + ":9005/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var text strings.Builder
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	return text.String()
}

// load is requests at a steady rate and streams at a steady number, each on a connection of its own or not.
type load struct {
	sent, streams, failedStreams atomic.Int64
	mu                           sync.Mutex
	failures                     []string
	end                          func() // ends it and waits for what is under way
}

// run sends until ctx ends, then waits for what is under way.
func (l *load) run(ctx context.Context, url string, perSecond, streams int) {
	var all sync.WaitGroup
	shared, fresh := client(), client()
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	for range streams {
		all.Go(func() {
			for ctx.Err() == nil {
				l.stream(fresh, url)
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
		case <-tick.C:
			all.Go(func() {
				c := []*http.Client{shared, fresh}[i%2]
				l.sent.Add(1)
				code, answer, err := post(context.Background(), c, url+"/echo", "a", strings.NewReader(chat))
				if err != nil || code != http.StatusOK {
					l.fail(fmt.Sprintf("%s: %d %.80s %v", time.Now().Format(time.TimeOnly), code, answer, err))
				}
			})
		}
	}
	all.Wait()
}

// stream reads one stream of 80 events in eight seconds to its end.
func (l *load) stream(c *http.Client, url string) {
	l.streams.Add(1)
	r, err := c.Get(url + "/drip?n=80&ms=100")
	if err != nil {
		l.failedStreams.Add(1)
		l.fail("stream: " + err.Error())
		return
	}
	defer r.Body.Close()
	events := 0
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data:") {
			events++
		}
	}
	if r.StatusCode != http.StatusOK || events < 80 || lines.Err() != nil {
		l.failedStreams.Add(1)
		l.fail(fmt.Sprintf("stream: %d with %d events (%v)", r.StatusCode, events, lines.Err()))
	}
}

func (l *load) fail(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, what)
}

// TestRolloutRestartLosesNothing: no request is answered before the sidecar is ready, and at the end of a pod streams finish.
func TestRolloutRestartLosesNothing(t *testing.T) {
	monitoringKinds(t)
	ns, url := gatewayOf(t, "rollout")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var l load
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx, url, 50, 10) }()
	time.Sleep(2 * time.Second)
	for range 2 {
		kubectl(t, "-n", ns, "rollout", "restart", "deploy/gateway")
		ready(t, ns, "deploy/gateway")
	}
	time.Sleep(12 * time.Second) // the last pods drain
	stop()
	<-ended
	t.Logf("%d requests, %d streams over two rollouts: %d failures", l.sent.Load(), l.streams.Load(), len(l.failures))
	if l.sent.Load() < 500 || l.streams.Load() < 20 {
		t.Errorf("only %d requests and %d streams were sent", l.sent.Load(), l.streams.Load())
	}
	for i, f := range l.failures {
		if i < 10 {
			t.Errorf("failed: %s", f)
		}
	}
	for _, p := range pods(t, ns, "app.kubernetes.io/name=gateway") {
		checkOrder(t, ns, p)
	}
}

// checkOrder checks that a pod's sidecar was started before its Envoy.
func checkOrder(t *testing.T, ns, pod string) {
	t.Helper()
	sidecar := kubectl(t, "-n", ns, "get", "pod", pod, "-o", `jsonpath={.status.initContainerStatuses[?(@.name=="extproc")].state.running.startedAt}`)
	envoy := kubectl(t, "-n", ns, "get", "pod", pod, "-o", `jsonpath={.status.containerStatuses[?(@.name=="envoy")].state.running.startedAt}`)
	if sidecar == "" || envoy == "" || sidecar > envoy {
		t.Errorf("%s: the sidecar started at %q, Envoy at %q", pod, sidecar, envoy)
	}
}
