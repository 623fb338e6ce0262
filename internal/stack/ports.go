package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Free ports are looked for below the range from which the kernel takes those of outgoing connections (32768 and up): there,
// anybody's connection can take a port between its choice and its use.
const (
	lowestPort  = 12000
	highestPort = 32000
	// busOffset is how much higher than its port the Cluster bus of a Redis listens.
	busOffset = 10000
)

// FreePorts returns n different TCP addresses on 127.0.0.1 that nothing listens on. No other process gets them from here
// while this one runs.
func FreePorts(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		port, err := freePort(lowestPort, highestPort)
		if err != nil {
			return nil, err
		}
		addrs[i] = localAddress(port)
	}
	return addrs, nil
}

// redisPort returns a free port whose Cluster bus port is free too.
func redisPort() (int, error) {
	return freePort(lowestPort, highestPort-busOffset, busOffset)
}

// freePort reserves a port from low up to high, and those that lie the given offsets above it.
func freePort(low, high int, offsets ...int) (int, error) {
	for range 1000 {
		port := low + rand.IntN(high-low) //nolint:gosec // not a secret
		taken := slices.ContainsFunc(append([]int{0}, offsets...), func(o int) bool { return !reservePort(port + o) })
		if !taken {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: 1000 between %d and %d are taken", low, high)
}

// reservePort reports whether nothing listens on the port and nobody else has reserved it. The reservation is an abstract
// Unix socket, which ends with this process and needs no file.
func reservePort(port int) bool {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("@headgate-port-%d", port)}) != nil {
		syscall.Close(fd)
		return false
	}
	l, err := net.Listen("tcp", localAddress(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func localAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// wanted is an address and who is going to listen on it.
type wanted struct{ address, who string }

// checkFree returns one error that names every wanted address that is taken, nil when all are free.
func checkFree(all []wanted) error {
	var taken []string
	for _, w := range all {
		if strings.HasPrefix(w.address, "unix:") {
			continue // the sidecar takes over a stale socket and reports a live one
		}
		l, err := net.Listen("tcp", w.address)
		switch {
		case err == nil:
			l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			taken = append(taken, fmt.Sprintf("  %s, wanted by %s, is taken", w.address, w.who))
		default:
			taken = append(taken, fmt.Sprintf("  %s, wanted by %s, cannot be listened on: %v", w.address, w.who, err))
		}
	}
	if len(taken) == 0 {
		return nil
	}
	return fmt.Errorf("cannot start:\n%s", strings.Join(taken, "\n"))
}
