//go:build cluster

package cluster

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// buildHelm puts Helm next to the node's other programs.
func buildHelm(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "go", "build", "-C", "tools/helm", "-o", filepath.Join(node.tools, "bin", "helm"), "helm.sh/helm/v3/cmd/helm")
	c.Dir = node.root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build helm: %v\n%s", err, out)
	}
}

// TestHelm installs the chart, and the chart that takes the sidecar from it, with the commands of the documentation: requests
// go through both Services, and settings that an upgrade changes reach running pods.
func TestHelm(t *testing.T) {
	buildHelm(t)
	const ns = "llm"
	kubectl(t, "wait", "--for=delete", "namespace/"+ns, "--timeout=120s")
	namespaceCalled(t, ns, "restricted")
	upstream(t, ns)
	runSection(t, "kubernetes.md", "With Helm")

	ready(t, ns, "deploy/llm-gateway")
	all := pods(t, ns, "app.kubernetes.io/instance=gateway")
	address := podIP(t, ns, all[0]) + ":8080"
	eventually(t, 2*time.Minute, "the upgrade's limit of 40 MiB in a running pod", func() error {
		return declared(t.Context(), address, 41<<20, "HTTP/1.1 413")
	})
	for _, p := range all {
		for container, n := range restarts(t, ns, p) {
			if n != 0 {
				t.Errorf("%s of %s was restarted %d times", container, p, n)
			}
		}
	}
	upgrade := []string{"-n", ns, "upgrade", "gateway", "deploy/helm/headgate", "--reuse-values"}
	for _, name := range []string{"minLimit", "initialLimit", "maxLimit"} {
		upgrade = append(upgrade, "--set", "config.clusters.chat.lanes."+name+"="+laneLimitText)
	}
	if _, err := try(t.Context(), "helm", upgrade...); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", ns, "rollout", "restart", "deploy/gateway") // limits begin anew
	ready(t, ns, "deploy/gateway")
	for _, p := range all {
		kubectl(t, "-n", ns, "wait", "--for=delete", "pod/"+p, "--timeout=120s")
	}
	checkGateway(t, ns, "gateway", "chat")
	checkBudget(t, ns, "downward_api", 1<<30)

	url := "http://app." + ns + ".svc.cluster.local"
	reachable(t, url)
	code, answer, err := post(t.Context(), client(), url+"/v1/chat/completions", "a", strings.NewReader(chat))
	if err != nil || code != http.StatusOK {
		t.Errorf("through the sidecar in another chart: %d %s (%v), want 200", code, answer, err)
	}
	checkDeclared(t, url)
	h, err := health(t.Context(), adminURL(t, ns, pods(t, ns, "app.kubernetes.io/instance=app")[0]))
	if err != nil || h.ChatAdmission.EffectiveCeiling != 4<<30 {
		t.Errorf("its budget derives from %d bytes (%v), want the application's limit of 4 GiB", h.ChatAdmission.EffectiveCeiling, err)
	}
}
