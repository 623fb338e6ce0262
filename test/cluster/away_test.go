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

// TestSidecarInBackOff: a pod whose sidecar stays away gives its clients up, so that they go to other pods.
func TestSidecarInBackOff(t *testing.T) {
	monitoringKinds(t)
	ns, url := gatewayOf(t, "backoff")
	victim := pods(t, ns, "app.kubernetes.io/name=gateway")[0]
	direct := "http://" + podIP(t, ns, victim) + ":8080/echo"
	for n := 1; n <= 3; n++ { // the kubelet waits longer each time: 0 s, 10 s, 20 s
		eventually(t, 40*time.Second, "the sidecar is killed", func() error { return tryKill(t, ns, victim, "extproc") })
	}
	c := client()
	eventually(t, 18*time.Second, "answers close their connections", func() error {
		r, err := c.Post(direct, "application/json", strings.NewReader(chat))
		if err != nil {
			return err
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusServiceUnavailable || !r.Close {
			return fmt.Errorf("%d, closes: %v", r.StatusCode, r.Close)
		}
		return nil
	})
	for range 20 { // who asks the Service gets the other pod
		if code, answer, err := post(t.Context(), c, url+"/echo", "a", strings.NewReader(chat)); err != nil || code != http.StatusOK {
			t.Errorf("through the Service: %d %.80s (%v), want 200", code, answer, err)
		}
	}
	eventually(t, time.Minute, "the pod serves again and keeps connections", func() error {
		r, err := c.Post(direct, "application/json", strings.NewReader(chat))
		if err != nil {
			return err
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusOK || r.Close {
			return fmt.Errorf("%d, closes: %v", r.StatusCode, r.Close)
		}
		return nil
	})
}

// TestStartsWithoutNameService: pods become ready while no name server answers, and find their upstream once one does.
func TestStartsWithoutNameService(t *testing.T) {
	ns := namespace(t, "nodns")
	upstream(t, ns)
	ready(t, ns, "deploy/llm-gateway")
	kubectl(t, "-n", "kube-system", "scale", "deploy/coredns", "--replicas=0")
	restore := func(ctx context.Context) error {
		_, err := try(ctx, "kubectl", "-n", "kube-system", "scale", "deploy/coredns", "--replicas=1")
		return err
	}
	t.Cleanup(func() {
		if err := restore(context.Background()); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-dns", "--timeout=60s")
	overlay{shipped: "base", namespace: ns, patches: []string{lessCPU("gateway", "initContainers/0", "containers/0")}}.apply(t)
	ready(t, ns, "deploy/gateway")
	if err := restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	ip := kubectl(t, "-n", ns, "get", "service", "gateway", "-o", "jsonpath={.spec.clusterIP}")
	eventually(t, time.Minute, "requests arrive once names are known", func() error {
		code, answer, err := post(t.Context(), client(), "http://"+ip+"/echo", "a", strings.NewReader(chat))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %.80s", code, answer)
		}
		return err
	})
}
