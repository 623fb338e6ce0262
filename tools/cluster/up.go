package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	superviseCommand = "supervise" // what up leaves running
	readyFile        = "ready"
	progressFile     = "progress"
	proxyFile        = "proxy"
)

// up builds what is missing, starts the node and prints how to reach it. A node that runs already stays.
func up(ctx context.Context, f folders) error {
	if err := checkMachine(f); err != nil {
		return err
	}
	if err := build(ctx, f); err != nil {
		return err
	}
	if _, err := f.nodePID(); err != nil {
		if err := start(ctx, f); err != nil {
			return errors.Join(err, down(f))
		}
	} else {
		say("the node runs already; only its images are imported again")
	}
	if err := importImages(ctx, f); err != nil {
		return err
	}
	if err := startDNS(ctx, f); err != nil {
		return err
	}
	address, err := os.ReadFile(filepath.Join(f.Node, proxyFile))
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\nexport CLUSTER_PROXY=http://%s\n", f.kubeconfig(), address)
	say("ready. kubectl is %s. Services by name: curl --proxytunnel -x $CLUSTER_PROXY http://SERVICE.NAMESPACE.svc.cluster.local/", filepath.Join(f.Bin, "kubectl"))
	return nil
}

// start starts a new node and waits until it is ready, with its progress as it comes.
func start(ctx context.Context, f folders) error {
	if err := down(f); err != nil { // what a killed one left
		return err
	}
	if err := writeSettings(f); err != nil {
		return err
	}
	_ = os.Symlink("kube", filepath.Join(f.Bin, "kubectl"))
	progress, err := os.Create(filepath.Join(f.Node, progressFile))
	if err != nil {
		return err
	}
	defer progress.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, superviseCommand) // outlives this process
	c.Env = append(os.Environ(), "CLUSTER_ROOT="+f.Root)
	c.Stdout, c.Stderr = progress, progress
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	say("starting the node ...")
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	shown, err := os.Open(progress.Name())
	if err != nil {
		return err
	}
	defer shown.Close()
	lines := bufio.NewReader(shown)
	for {
		if line, err := lines.ReadString('\n'); err == nil {
			fmt.Fprint(os.Stderr, line)
			continue
		}
		if exists(filepath.Join(f.Node, readyFile)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			text, _ := os.ReadFile(progress.Name())
			return fmt.Errorf("the node ended (%w): %s", err, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// supervise keeps the node's first process, and lends its proxy a port on loopback. The node ends with it.
func supervise(ctx context.Context, f folders) error {
	signal.Ignore(syscall.SIGHUP)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	conf := kubeconfig(filepath.Join(f.Node, "pki"), "admin", address)
	if err := errors.Join(os.WriteFile(filepath.Join(f.Node, proxyFile), []byte(address), 0o600), os.WriteFile(f.kubeconfig(), []byte(conf), 0o600)); err != nil {
		return err
	}
	go relay(ctx, l, filepath.Join(f.Node, proxySocket))

	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started the child ends
	c := exec.Command(self, nodeCommand)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start the node's namespaces: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = c.Process.Kill() })
	pids := fmt.Sprintf("%d %d\n", os.Getpid(), c.Process.Pid)
	if err := os.WriteFile(f.pidFile(), []byte(pids), 0o600); err != nil {
		return errors.Join(err, c.Process.Kill())
	}
	return errors.Join(c.Wait(), removeCgroups())
}

func (f folders) pidFile() string { return filepath.Join(f.Node, "pids") }

// pids returns the supervisor and the node's first process, as far as they run.
func (f folders) pids() (supervisor, node int, err error) {
	text, err := os.ReadFile(f.pidFile())
	if err != nil {
		return 0, 0, errors.New("no node runs: cluster up starts one")
	}
	if _, err := fmt.Sscan(string(text), &supervisor, &node); err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", f.pidFile(), err)
	}
	for _, p := range []*int{&supervisor, &node} {
		// A number may belong to another process by now.
		command, err := os.ReadFile("/proc/" + strconv.Itoa(*p) + "/cmdline")
		if err != nil || !strings.Contains(string(command), "cluster") {
			*p = 0
		}
	}
	return supervisor, node, nil
}

func (f folders) nodePID() (int, error) {
	supervisor, node, err := f.pids()
	if err != nil {
		return 0, err
	}
	if supervisor == 0 || node == 0 {
		return 0, errors.New("the node has ended: cluster up starts another")
	}
	return node, nil
}

// down ends the node. Its first process takes everything in its namespaces with it.
func down(f folders) error {
	supervisor, node, err := f.pids()
	if err == nil {
		for _, pid := range []int{node, supervisor} {
			if pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
		if node != 0 {
			_ = syscall.Kill(node, syscall.SIGKILL)
		}
		for range 100 {
			supervisor, node, _ = f.pids()
			if supervisor == 0 && node == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if supervisor != 0 || node != 0 {
			return fmt.Errorf("processes %d and %d do not end", supervisor, node)
		}
		say("the node has ended")
	}
	if err := removeCgroups(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the node's cgroups: %w", err)
	}
	return os.RemoveAll(f.Node)
}

// importImages hands the archives to containerd.
func importImages(ctx context.Context, f folders) error {
	all, err := filepath.Glob(filepath.Join(f.Images, "*.tar"))
	if err != nil {
		return err
	}
	say("importing %d images ...", len(all))
	for _, archive := range all {
		if err := f.inside(ctx, "ctr", "-n", "k8s.io", "images", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// startDNS applies the name service and the volumes, and waits for the first.
func startDNS(ctx context.Context, f folders) error {
	say("starting the name service ...")
	kubectl := filepath.Join(f.Bin, "kube")
	if err := f.inside(ctx, kubectl, "kubectl", "apply", "-f", filepath.Join(f.Node, "dns.yaml"), "-f", filepath.Join(f.Node, "volumes.yaml")); err != nil {
		return err
	}
	return f.inside(ctx, kubectl, "kubectl", "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout=180s")
}

// inside runs a command in the node; the error carries what it printed.
func (f folders) inside(ctx context.Context, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return quietly(ctx, f.Root, self, append([]string{"exec"}, args...)...)
}
