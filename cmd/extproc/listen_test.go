package main

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestASocketWithAFullBacklogIsNotStale: somebody who is too busy to accept still listens there.
func TestASocketWithAFullBacklogIsNotStale(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil { // and nobody accepts
		t.Fatal(err)
	}
	for range 4 {
		client, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Close(client) }()
		if err := syscall.Connect(client, &syscall.SockaddrUnix{Name: path}); err == syscall.EAGAIN {
			break
		}
	}
	if l, err := listen(t.Context(), "listen.grpc", "unix://"+path); err == nil {
		_ = l.Close()
		t.Error("the socket of a busy process was taken over")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket of a busy process was removed: %v", err)
	}
}

// TestAStaleSocketIsReplaced: one that a dead process left.
func TestAStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	l, err := listen(t.Context(), "listen.grpc", "unix://"+path)
	if err != nil {
		t.Fatalf("a stale socket: %v, want it replaced", err)
	}
	_ = l.Close()
}
