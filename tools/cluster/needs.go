package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// checkMachine says everything that the machine lacks for a node.
func checkMachine(f folders) error {
	var lacks []error
	lack := func(format string, args ...any) { lacks = append(lacks, fmt.Errorf(format, args...)) }
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a node needs Linux, this is %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		lack("root: namespaces, mounts and cgroups need it")
	}
	for program, from := range map[string]string{
		"go": "the Go tool chain", "gcc": "a C compiler, for runc", "pkg-config": "the package pkg-config, for runc", "ldd": "the package libc-bin",
		"nsenter": "the package util-linux", "mount": "the package mount", "bash": "the package bash",
	} {
		if _, err := exec.LookPath(program); err != nil {
			lack("%s (%s)", program, from)
		}
	}
	for file, what := range map[string]string{
		"/proc/self/ns/net": "network namespaces", "/proc/self/ns/pid": "process namespaces", "/proc/sys/net/ipv4/ip_forward": "forwarding (net.ipv4.ip_forward)",
	} {
		if !exists(file) {
			lack("a kernel with %s", what)
		}
	}
	systems, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(systems), "overlay\n") && exec.Command("modprobe", "overlay").Run() != nil {
		lack("a kernel with overlayfs")
	}
	if _, err := cgroups(); err != nil {
		lacks = append(lacks, err)
	}
	var s syscall.Statfs_t
	const overlay = 0x794c7630
	if syscall.Statfs(f.Root, &s) == nil && s.Type == overlay {
		lack("a repository on a file system of its own: overlayfs, as in a container's root, cannot hold another overlayfs; mount a volume there")
	}
	if err := syscall.Statfs(f.Root, &s); err == nil && s.Bavail*uint64(s.Bsize) < 8<<30 {
		lack("8 GiB of free disk space: %d MiB are free", s.Bavail*uint64(s.Bsize)>>20)
	}
	if len(lacks) > 0 {
		return fmt.Errorf("this machine lacks:\n%w", errors.Join(lacks...))
	}
	return nil
}
