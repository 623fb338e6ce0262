package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Two things have no Go module: nft, which kube-proxy runs to write its rules, and libseccomp, which runc links against for
// the runtime's seccomp profile. Where the machine lacks them they come as Debian packages, downloaded with apt and
// unpacked beside the programs; nothing is installed.
var (
	nftPackages     = []string{"nftables", "libnftables1", "libnftnl11", "libxtables12", "libmnl0", "libedit2", "libjansson4", "libbsd0", "libmd0", "libgmp10"}
	seccompPackages = []string{"libseccomp-dev", "libseccomp2"}
)

func findPackages(ctx context.Context, f folders) error {
	nft := filepath.Join(f.Bin, "nft")
	_, err := exec.LookPath("nft")
	if err != nil && !exists(nft) {
		if err := unpack(ctx, f, "nft", nftPackages); err != nil {
			return err
		}
		libraries := f.Debian + "/usr/lib/" + multiarch() + ":" + f.Debian + "/lib/" + multiarch()
		script := fmt.Sprintf("#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/usr/sbin/nft \"$@\"\n", libraries, f.Debian)
		if err := os.WriteFile(nft, []byte(script), 0o755); err != nil { //nolint:gosec // a program
			return err
		}
	}
	if exists("/usr/include/seccomp.h") || exists(filepath.Join(f.Debian, "usr/include/seccomp.h")) {
		return nil
	}
	return unpack(ctx, f, "libseccomp", seccompPackages)
}

// unpack downloads packages and unpacks them into f.Debian.
func unpack(ctx context.Context, f folders, what string, packages []string) error {
	for _, needed := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(needed); err != nil {
			return fmt.Errorf("%s is missing and there is no %s to fetch it with: install the packages nftables and libseccomp-dev (libseccomp-devel)", what, needed)
		}
	}
	say("downloading %s (%s) ...", what, strings.Join(packages, " "))
	archives := filepath.Join(f.Debian, "archives")
	if err := os.MkdirAll(archives, 0o755); err != nil {
		return err
	}
	download := func() error { return quietly(ctx, archives, "apt-get", append([]string{"download"}, packages...)...) }
	if err := download(); err != nil { // without lists of packages, or with old ones
		if err := quietly(ctx, archives, "apt-get", "update", "-q"); err != nil {
			return err
		}
		if err := download(); err != nil {
			return err
		}
	}
	all, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range all {
		if err := quietly(ctx, archives, "dpkg-deb", "-x", deb, f.Debian); err != nil {
			return err
		}
	}
	return nil
}

// quietly runs a command; the error carries what it printed.
func quietly(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
