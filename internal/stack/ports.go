package stack

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// FreePorts returns n different TCP addresses on 127.0.0.1 that nothing listens on at the moment. Use them soon.
func FreePorts(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all stay open until all are known, so that they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

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
