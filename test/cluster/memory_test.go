//go:build cluster

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const mib = 1 << 20

// TestSharedProcess: the budget follows the protected container, resized in place both ways, and memory that it really uses
// raises the pressure, sheds, and lets go again.
func TestSharedProcess(t *testing.T) {
	ns := namespace(t, "shared")
	overlay{
		shipped: "overlays/shared-process", namespace: ns, settings: tenantsAndLanes, template: "headgate-template",
		envoy: []string{"--listen", "0.0.0.0:8080", "--upstream", "127.0.0.1:8000"},
		patches: []string{
			lessCPU("gateway", "initContainers/1", "containers/0", "containers/1"),
			"- target: {kind: Deployment, name: gateway}\n  patch: |\n" +
				"    - {op: replace, path: /spec/replicas, value: 1}\n" +
				"    - {op: replace, path: /spec/template/spec/containers/1/resources/requests/memory, value: 64Mi}\n" +
				"    - {op: replace, path: /spec/template/spec/containers/1/resources/limits/memory, value: 256Mi}\n",
		},
	}.apply(t)
	ready(t, ns, "deploy/gateway")
	checkGateway(t, ns, "gateway", "chat")

	pod := pods(t, ns, "app.kubernetes.io/name=gateway")[0]
	sidecar := adminURL(t, ns, pod)
	ceiling := func(want int64) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("a ceiling of %d MiB", want/mib), func() error {
			h, err := health(t.Context(), sidecar)
			if a := h.ChatAdmission; err == nil && (a.BudgetSource != "cgroup" || a.EffectiveCeiling != want) {
				err = fmt.Errorf("%s %d", a.BudgetSource, a.EffectiveCeiling)
			}
			return err
		})
	}
	ceiling(256 * mib)
	for _, size := range []int64{512 * mib, 384 * mib} {
		kubectl(t, "-n", ns, "patch", "pod", pod, "--subresource=resize", "--type=strategic", "-p",
			fmt.Sprintf(`{"spec":{"containers":[{"name":"llm-gateway","resources":{"limits":{"memory":"%dMi"}}}]}}`, size/mib))
		ceiling(size)
	}
	if n := restarts(t, ns, pod)["llm-gateway"]; n != 0 {
		t.Errorf("the resizes restarted the protected container %d times", n)
	}
	checkPressure(t, ns, pod, sidecar)
}

// checkPressure allocates in the protected container, whose limit is 384 MiB.
func checkPressure(t *testing.T, ns, pod, sidecar string) {
	t.Helper()
	url := "http://gateway." + ns + ".svc.cluster.local/v1/chat/completions"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hog := command(ctx, "kubectl", "-n", ns, "exec", pod, "-c", "llm-gateway", "--", "/app/server", "allocate", fmt.Sprint(355*mib), "20s")
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "a refusal under pressure", func() error {
		code, answer, err := post(t.Context(), client(), url, "a", strings.NewReader(chat))
		if err == nil && (code != http.StatusServiceUnavailable || !strings.HasPrefix(answer, "resource_pressure")) {
			h, _ := health(t.Context(), sidecar)
			err = fmt.Errorf("%d %.80s, pressure %s", code, answer, h.ChatAdmission.PressureSeverity)
		}
		return err
	})
	h, err := health(t.Context(), sidecar)
	if err != nil || h.ChatAdmission.PressureSeverity != "critical" {
		t.Errorf("pressure %s by %s (%v), want critical", h.ChatAdmission.PressureSeverity, h.ChatAdmission.PressureReason, err)
	}
	_ = hog.Wait()
	eventually(t, 30*time.Second, "served again", func() error {
		code, answer, err := post(t.Context(), client(), url, "a", strings.NewReader(chat))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %.80s", code, answer)
		}
		return err
	})
	if n := restarts(t, ns, pod)["llm-gateway"]; n != 0 {
		t.Errorf("the protected container was killed %d times", n)
	}
}
