package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// listen opens a listener on "host:port" or "unix:///path". A socket file that a dead process left is replaced; one
// that somebody answers on is not.
func listen(ctx context.Context, key, addr string) (net.Listener, error) {
	network, address, err := config.ParseAddr(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if network == "unix" {
		if err := removeStale(ctx, address); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	switch {
	case network == "unix" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		return nil, fmt.Errorf("%s: %w (make %s, writable for this user, or listen elsewhere: HEADGATE_LISTEN_GRPC=127.0.0.1:9002)",
			key, err, filepath.Dir(address))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if network == "unix" {
		// Envoy runs as another user; who may reach the socket is the directory's matter.
		if err := os.Chmod(address, 0o666); err != nil { //nolint:gosec // see above
			return nil, errors.Join(fmt.Errorf("%s: %w", key, err), l.Close())
		}
	}
	return l, nil
}

// removeStale removes a socket file that nobody answers on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the socket: %w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process serves on %s", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // a full backlog, say: somebody listens there, however busy
		return fmt.Errorf("another process may serve on %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the stale socket: %w", err)
	}
	return nil
}
