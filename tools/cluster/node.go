package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// nodeCommand is what supervise runs as the first process of the node's namespaces.
const nodeCommand = "node"

// runNode sets the namespaces up, starts the daemons and stays until one of them ends. As process 1 it takes everything in the
// namespaces with it: processes, mounts and network.
func runNode(ctx context.Context, f folders) error {
	if os.Getpid() != 1 {
		return errors.New("node is not for use by hand: run up")
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"mounts", func() error { return mounts(f) }},
		{"network", network},
		{"cgroups", makeCgroups},
		{"host name", func() error { return syscall.Sethostname([]byte(nodeName)) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("set up the node's %s: %w", step.what, err)
		}
	}
	if err := os.Setenv("PATH", f.path()); err != nil {
		return err
	}
	ended := make(chan error, 16)
	if err := serveProxy(ctx, filepath.Join(f.Node, proxySocket)); err != nil {
		return err
	}
	go reap(ctx)
	if err := startDaemons(ctx, f, ended); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// mounts gives the node its own /proc, /run and /var, and makes settings of the kernel look as the kubelet wants them.
func mounts(f folders) error {
	at := func(name string) string { return filepath.Join(f.Node, name) }
	overlay := "lowerdir=/var,upperdir=" + at("var-upper") + ",workdir=" + at("var-work")
	for _, m := range []struct {
		source, target, kind, options string
		flags                         uintptr
	}{
		{"", "/", "", "", syscall.MS_REC | syscall.MS_SLAVE}, // nothing gets out
		{"", "/", "", "", syscall.MS_REC | syscall.MS_SHARED},
		{"proc", "/proc", "proc", "", 0},
		{"overlay", "/var", "overlay", overlay, 0},
		{"tmpfs", "/run", "tmpfs", "mode=755", 0},
		{"tmpfs", at("etcd"), "tmpfs", "", 0},
	} {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, v := range volumes {
		if err := os.MkdirAll(filepath.Join(volumeFolder, fmt.Sprint(v)), 0o777); err != nil { //nolint:gosec // Kubernetes gives it to a pod's group
			return err
		}
	}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		given := at("fake/" + filepath.Base(name))
		if err := os.WriteFile(given, []byte(value+"\n"), 0o600); err != nil {
			return err
		}
		if target := "/proc/sys/" + name; exists(target) {
			if err := syscall.Mount(given, target, "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount %s: %w", target, err)
			}
		}
	}
	return nil
}

// network makes the node's address, on a bridge without ports: there is no way out.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "node0"}}
	address, err := netlink.ParseAddr(nodeNetwork)
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkAdd(bridge)); err != nil {
		return err
	}
	if err := errors.Join(netlink.AddrAdd(bridge, address), netlink.LinkSetUp(bridge)); err != nil {
		return err
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: bridge.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: everywhere}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)
}

// reap takes the exit statuses of processes that lost their parents, which only process 1 can. Those of the daemons are left
// to os/exec.
func reap(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(10 * time.Second)
		found, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, stat := range found {
			text, err := os.ReadFile(stat)
			if err != nil {
				continue
			}
			name, rest, _ := strings.Cut(string(text), ") ")
			field := strings.Fields(rest)
			if len(field) < 2 || field[0] != "Z" || field[1] != "1" || isDaemon(name[strings.Index(name, "(")+1:]) {
				continue
			}
			var pid int
			if _, err := fmt.Sscan(filepath.Base(filepath.Dir(stat)), &pid); err == nil {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			}
		}
	}
}

// execute runs a command in the node's namespaces.
func execute(ctx context.Context, f folders, args []string) error {
	pid, err := f.nodePID()
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("exec what?")
	}
	if err := errors.Join(os.Setenv("PATH", f.path()), os.Setenv("KUBECONFIG", filepath.Join(f.Node, "admin.conf"))); err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	into := []string{"-t", fmt.Sprint(pid), "-m", "-n", "-p", "-u", "-i", "--wdns=" + wd, "--"}
	c := exec.CommandContext(ctx, "nsenter", append(into, args...)...) //nolint:gosec // the caller's own command
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c.Run()
}
