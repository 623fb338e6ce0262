//go:build cluster

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const leaseKey = "a key of the tests"

// leased is what a user of session leases writes: who may have them.
func leased(s settings) {
	tenantsAndLanes(s)
	sum := sha256.Sum256([]byte(leaseKey))
	s["principals"] = []any{map[string]any{
		"id": "team-a", "keySHA256": hex.EncodeToString(sum[:]), "scopes": []any{"lease:exclusive"}, "connections": []any{"acct-1", "acct-2"},
	}}
	// Requests to the model need a lease; everything else does not.
	s.at("clusters", "chat", "lanes")["mode"] = "shadow"
}

// secret is the manifest of the Redis users and their password.
func secret(ns, password string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: headgate-redis, namespace: %s}
stringData:
  password: "%s"
  users.acl: |
    user default off
    user headgate on >%s ~headgate* resetchannels +@all -@admin -@dangerous +info
`, ns, password, password)
}

// TestGatewayWithRedis: one lease through two gateways, a rotated password, and a Redis that goes.
func TestGatewayWithRedis(t *testing.T) {
	monitoringKinds(t)
	ns := namespace(t, "redis")
	upstream(t, ns)
	apply(t, secret(ns, "first"))
	overlay{
		shipped: "overlays/gateway-with-redis", namespace: ns, settings: leased, envoy: fromPrinted,
		patches: []string{lessCPU("gateway", "initContainers/0", "containers/0")},
	}.apply(t)
	ready(t, ns, "statefulset/redis")
	ready(t, ns, "deploy/gateway")
	all := pods(t, ns, "app.kubernetes.io/name=gateway")
	if len(all) != 2 {
		t.Fatalf("%d gateways, want 2", len(all))
	}
	one, two := "http://"+podIP(t, ns, all[0])+":8080", "http://"+podIP(t, ns, all[1])+":8080"

	var held lease
	// The Redis came last, and its name is not known everywhere at once.
	eventually(t, 30*time.Second, "a lease", func() (err error) {
		held, err = acquire(t.Context(), one, "vlo_"+strings.Repeat("s", 43))
		return err
	})
	for _, gateway := range []string{one, two} {
		if code, answer, err := held.chat(t.Context(), gateway); err != nil || code != http.StatusOK {
			t.Errorf("with the lease through %s: %d %s (%v), want 200", gateway, code, answer, err)
		}
	}
	if code, answer, err := post(t.Context(), client(), two+"/v1/chat/completions", "a", strings.NewReader(chat)); err != nil || code == http.StatusOK {
		t.Errorf("without a lease: %d %s (%v), want a refusal", code, answer, err)
	}

	// The password changes in the secret; Redis reads its users when it starts, the sidecars the file when they connect.
	apply(t, secret(ns, "second"))
	time.Sleep(10 * time.Second) // until the kubelet has brought it to the pods
	kubectl(t, "-n", ns, "delete", "pod", "redis-0", "--grace-period=1")
	ready(t, ns, "statefulset/redis")
	eventually(t, time.Minute, "leases with the new password", func() error {
		code, answer, err := held.chat(t.Context(), two)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, answer)
		}
		return err
	})
	checkWithoutRedis(t, ns, one, held)
}

// checkWithoutRedis takes the Redis away under load: who has no lease notices nothing, and no pod stops being ready.
func checkWithoutRedis(t *testing.T, ns, gateway string, held lease) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var l load
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx, gateway, 20, 2) }()
	kubectl(t, "-n", ns, "scale", "statefulset/redis", "--replicas=0")
	eventually(t, 30*time.Second, "leased requests are refused", func() error {
		code, answer, err := held.chat(t.Context(), gateway)
		if err == nil && code != http.StatusServiceUnavailable {
			err = fmt.Errorf("%d %s", code, answer)
		}
		return err
	})
	for range 10 {
		time.Sleep(time.Second)
		if n := kubectl(t, "-n", ns, "get", "deploy", "gateway", "-o", "jsonpath={.status.readyReplicas}"); n != "2" {
			t.Errorf("%s gateways are ready without the Redis, want 2", n)
		}
	}
	kubectl(t, "-n", ns, "scale", "statefulset/redis", "--replicas=1")
	ready(t, ns, "statefulset/redis")
	eventually(t, time.Minute, "leased requests again", func() error {
		code, answer, err := held.chat(t.Context(), gateway)
		if err == nil && code == http.StatusServiceUnavailable {
			err = fmt.Errorf("%d %s", code, answer)
		}
		return err
	})
	stop()
	<-ended
	t.Logf("without the Redis: %d requests and %d streams without a lease, %d failures", l.sent.Load(), l.streams.Load(), len(l.failures))
	for i, f := range l.failures {
		if i < 5 {
			t.Errorf("without a lease: %s", f)
		}
	}
}

// lease is a session's lease.
type lease struct {
	owner      string
	generation json.Number
}

// acquire takes a lease through a gateway's API.
func acquire(ctx context.Context, gateway, owner string) (lease, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/session-leases", strings.NewReader(`{"action":"acquire","model":"demo"}`))
	if err != nil {
		return lease{}, err
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set("authorization", "Bearer "+leaseKey)
	r.Header.Set("x-omniroute-lease-owner", owner)
	answer, err := client().Do(r)
	if err != nil {
		return lease{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return lease{}, err
	}
	var got struct{ Generation json.Number }
	if err := json.Unmarshal(text, &got); err != nil || got.Generation == "" || answer.StatusCode/100 != 2 {
		return lease{}, fmt.Errorf("acquire: %d %s (%w)", answer.StatusCode, text, err)
	}
	return lease{owner: owner, generation: got.Generation}, nil
}

// chat sends a chat with the lease.
func (l lease) chat(ctx context.Context, gateway string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", strings.NewReader(chat))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set("authorization", "Bearer "+leaseKey)
	r.Header.Set("x-omniroute-lease-owner", l.owner)
	r.Header.Set("x-omniroute-lease-generation", l.generation.String())
	answer, err := client().Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}
