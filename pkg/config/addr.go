package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// maxUnixPath is the longest path a socket address holds on Linux, terminating zero excluded.
const maxUnixPath = 107

// ParseAddr splits a listen address into the network and address of net.Listen: "unix:///absolute/path", which
// may be written "unix:/absolute/path" as gRPC does, or "host:port".
// The port is a number; 0 lets the system choose. An empty host means every interface.
func ParseAddr(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if rest, full := strings.CutPrefix(path, "//"); full {
			path = rest
		}
		switch {
		case !filepath.IsAbs(path):
			return "", "", fmt.Errorf("socket address %q must be unix:// and an absolute path", addr)
		case len(path) > maxUnixPath:
			return "", "", fmt.Errorf("socket path has %d bytes; the system allows %d", len(path), maxUnixPath)
		case strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0):
			return "", "", fmt.Errorf("socket address %q does not name a file", addr)
		}
		return "unix", path, nil
	}
	host, port, err := splitHostPort(addr)
	if err != nil {
		return "", "", err
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

func splitHostPort(addr string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("address %q must be host:port or unix:///path", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return "", "", fmt.Errorf("port of address %q must be a number up to 65535", addr)
	}
	if !validHost(host) {
		return "", "", fmt.Errorf("host of address %q is neither an IP address nor a name", addr)
	}
	return host, port, nil
}

func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return true
	}
	for _, r := range host {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_') {
			return false
		}
	}
	return true
}

// IsLocal reports whether only this machine can reach the address. Names other than localhost are not looked up.
func IsLocal(network, address string) bool {
	if network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && ip.Unmap().IsLoopback())
}
