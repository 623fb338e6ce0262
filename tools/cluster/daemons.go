package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// daemon is one program of the node and its arguments.
type daemon struct {
	name string
	args []string
}

// daemonNames are the names under which the daemons show in the list of processes.
var daemonNames = []string{"etcd", "containerd", "kube"}

func isDaemon(command string) bool { return slices.Contains(daemonNames, command) }

// daemons are the node's programs in the order in which they start; those after the API server start once it is ready.
func daemons(f folders) (before, after []daemon) {
	node, pki := func(name string) string { return filepath.Join(f.Node, name) }, filepath.Join(f.Node, "pki")
	kube := func(component string, args ...string) daemon {
		return daemon{component, append([]string{"kube", component}, args...)}
	}
	before = []daemon{
		{"etcd", []string{
			"etcd", "--data-dir=" + node("etcd"), "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=warn",
		}},
		{"containerd", []string{"containerd", "--config=" + node("containerd.toml")}},
		kube("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address="+nodeIP, "--advertise-address="+nodeIP, "--secure-port=6443",
			"--service-cluster-ip-range="+serviceSubnet, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
			"--client-ca-file="+pki+"/ca.crt", "--tls-cert-file="+pki+"/apiserver.crt", "--tls-private-key-file="+pki+"/apiserver.key",
			"--kubelet-preferred-address-types=InternalIP", "--kubelet-client-certificate="+pki+"/apiserver-kubelet.crt", "--kubelet-client-key="+pki+"/apiserver-kubelet.key",
			"--service-account-key-file="+pki+"/sa.pub", "--service-account-signing-key-file="+pki+"/sa.key",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--v=1"),
	}
	same := func(conf string) []string {
		return []string{"--kubeconfig=" + node(conf), "--authentication-kubeconfig=" + node(conf), "--authorization-kubeconfig=" + node(conf), "--bind-address=127.0.0.1", "--leader-elect=false", "--v=1"}
	}
	after = []daemon{
		kube("kube-controller-manager", append(same("controller-manager.conf"),
			"--service-account-private-key-file="+pki+"/sa.key", "--root-ca-file="+pki+"/ca.crt", "--use-service-account-credentials")...),
		kube("kube-scheduler", same("scheduler.conf")...),
		kube("kubelet", "--kubeconfig="+node("kubelet.conf"), "--config="+node("kubelet.yaml"), "--root-dir="+node("kubelet"), "--node-ip="+nodeIP, "--hostname-override="+nodeName, "--v=2"),
		kube("kube-proxy", "--config="+node("kube-proxy.yaml"), "--hostname-override="+nodeName, "--v=1"),
	}
	return before, after
}

// startDaemons starts everything and waits until the node is ready. A daemon that ends reports to ended.
func startDaemons(ctx context.Context, f folders, ended chan<- error) error {
	before, after := daemons(f)
	for _, d := range before {
		if err := d.start(f, ended); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := until(ctx, func() bool { _, err := f.kubectl(ctx, "get", "--raw", "/readyz"); return err == nil }); err != nil {
		return fmt.Errorf("the API server does not become ready: %w", err)
	}
	say("the API server is ready after %d s", int(time.Since(began).Seconds()))
	for _, d := range after {
		if err := d.start(f, ended); err != nil {
			return err
		}
	}
	ready := func() bool {
		state, err := f.kubectl(ctx, "get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && state == "True"
	}
	if err := until(ctx, ready); err != nil {
		return fmt.Errorf("the node does not become ready: %w", err)
	}
	say("the node is ready after %d s", int(time.Since(began).Seconds()))
	return os.WriteFile(filepath.Join(f.Node, readyFile), nil, 0o600)
}

func (d daemon) start(f folders, ended chan<- error) error {
	log := filepath.Join(f.Node, "logs", d.name+".log")
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	c := exec.Command(d.args[0], d.args[1:]...) // ends with the namespaces
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	go func() {
		err := c.Wait()
		ended <- fmt.Errorf("%s ended (%w); its log is %s", d.name, err, log)
	}()
	return nil
}

// kubectl runs kubectl as the node's administrator, inside the node.
func (f folders) kubectl(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, filepath.Join(f.Bin, "kube"), append([]string{"kubectl", "--kubeconfig=" + filepath.Join(f.Node, "admin.conf")}, args...)...)
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
}

// until waits until done, at most three minutes.
func until(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
	return nil
}
