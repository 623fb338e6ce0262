package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// program is what one `go build` makes: one program, or all tools of a module.
type program struct {
	name    string   // for messages and for the file in bin
	folder  string   // of the module, below this one
	from    []string // packages
	flags   string   // of the linker, besides -s -w
	tags    string
	cgo     bool
	expects string // how long it takes from an empty cache, where that is long
}

func programs(f folders) ([]program, error) {
	version, err := kubernetesVersion(f)
	if err != nil {
		return nil, err
	}
	const info = "-X k8s.io/component-base/version."
	return []program{
		{name: "pause", folder: ".", from: []string{"./pause"}},
		{name: "coredns", folder: "dns", from: []string{"."}, expects: "two minutes"},
		{name: "etcd", folder: "kube", from: []string{"go.etcd.io/etcd/server/v3"}, expects: "a minute"},
		{name: "containerd", folder: "runtime", from: []string{
			"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr", "github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/main/loopback", "github.com/containernetworking/plugins/plugins/main/ptp",
		}, expects: "two minutes"},
		{name: "envoy-gateway", folder: "gateway", from: []string{"github.com/envoyproxy/gateway/cmd/envoy-gateway"}, expects: "five minutes of processor time"},
		{name: "runc", folder: "runtime", from: []string{"github.com/opencontainers/runc"}, cgo: true, tags: "seccomp,netgo,osusergo"},
		{
			name: "kube", folder: "kube", from: []string{"."}, expects: "twelve minutes of processor time",
			flags: info + "gitVersion=" + version + " " + info + "gitMajor=" + strings.Split(version[1:], ".")[0] + " " +
				info + "gitMinor=" + strings.Split(version, ".")[1] + " " + info + "gitTreeState=clean",
		},
	}, nil
}

// kubernetesVersion reads the version from the module that is built.
func kubernetesVersion(f folders) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.Source, "kube", "go.mod"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`k8s\.io/kubernetes (v[0-9]+\.[0-9]+\.[0-9]+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("tools/cluster/kube/go.mod names no version of k8s.io/kubernetes")
	}
	return string(found[1]), nil
}

// buildPrograms builds the programs whose sources changed since they were built.
func buildPrograms(ctx context.Context, f folders) error {
	if err := findPackages(ctx, f); err != nil {
		return err
	}
	all, err := programs(f)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := p.build(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// build runs go build unless the program is there and its stamp says that it is made of the same things.
func (p program) build(ctx context.Context, f folders) error {
	stamp, err := p.stamp(f)
	if err != nil {
		return err
	}
	stampFile := filepath.Join(f.Bin, "."+p.name+".stamp")
	if was, err := os.ReadFile(stampFile); err == nil && string(was) == stamp && exists(filepath.Join(f.Bin, p.name)) {
		return nil
	}
	note := ""
	if p.expects != "" {
		note = " (" + p.expects + " with an empty cache)"
	}
	say("building %s%s ...", p.name, note)
	began := time.Now()
	target, ldflags := filepath.Join(f.Bin, p.name), "-s -w "+p.flags
	if len(p.from) > 1 {
		target = f.Bin + "/"
	}
	environ := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if p.cgo {
		ldflags += " -extldflags -static"
		environ = append(environ, "CGO_ENABLED=1", "CGO_CFLAGS=-I"+f.Debian+"/usr/include", "CGO_LDFLAGS=-L"+f.Debian+"/usr/lib/"+multiarch(),
			"PKG_CONFIG_PATH="+f.Debian+"/usr/lib/"+multiarch()+"/pkgconfig")
	}
	c := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-tags", p.tags, "-ldflags", ldflags, "-o", target}, p.from...)...)
	c.Dir, c.Env = filepath.Join(f.Source, p.folder), environ
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	say("built %s in %d s", p.name, int(time.Since(began).Seconds()))
	return os.WriteFile(stampFile, []byte(stamp), 0o600)
}

// stamp names what the program is made of: its module, its own source, how it is built and the tool chain.
func (p program) stamp(f folders) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), p.from, p.flags, p.tags, p.cgo)
	sources := []string{"go.mod", "go.sum"}
	for _, from := range p.from {
		if strings.HasPrefix(from, ".") {
			found, _ := filepath.Glob(filepath.Join(f.Source, p.folder, from, "main.go"))
			for _, s := range found {
				relative, _ := filepath.Rel(filepath.Join(f.Source, p.folder), s)
				sources = append(sources, relative)
			}
		}
	}
	for _, s := range sources {
		text, err := os.ReadFile(filepath.Join(f.Source, p.folder, s))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", s, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// multiarch is the name of Debian's library folder for this machine.
func multiarch() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
