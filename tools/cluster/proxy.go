package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// The node's network has no way in. An HTTP proxy on a socket file, which both sides see, opens connections inside (method
// CONNECT), to addresses and to the names of Services; supervise lends it a port on loopback.
const proxySocket = "proxy.sock"

// serveProxy serves the proxy inside the node until ctx ends.
func serveProxy(ctx context.Context, socket string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	names := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(dnsIP, "53"))
	}}
	dialer := &net.Dialer{Timeout: 10 * time.Second, Resolver: names}
	go accept(l, func(c net.Conn) { connect(ctx, c, dialer) })
	return nil
}

// connect opens the connection that the client asks for and copies between the two.
func connect(ctx context.Context, client net.Conn, dialer *net.Dialer) {
	defer client.Close()
	reader := bufio.NewReader(client)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if request.Method != http.MethodConnect {
		_, _ = io.WriteString(client, "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
		return
	}
	server, err := dialer.DialContext(ctx, "tcp", request.Host)
	if err != nil {
		_, _ = io.WriteString(client, "HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n"+err.Error()+"\n")
		return
	}
	defer server.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	join(reader, client, server)
}

// relay copies connections of a TCP listener to a socket file until ctx ends.
func relay(ctx context.Context, l net.Listener, socket string) {
	context.AfterFunc(ctx, func() { _ = l.Close() })
	accept(l, func(c net.Conn) {
		defer c.Close()
		server, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return
		}
		defer server.Close()
		join(c, c, server)
	})
}

// accept serves every connection of a listener until that is closed.
func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go serve(c)
	}
}

// join copies both ways until both sides have ended. A side that only ends its own direction can still be answered.
func join(fromClient io.Reader, client, server net.Conn) {
	var both sync.WaitGroup
	copyTo := func(to net.Conn, from io.Reader) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_, _ = client.Close(), server.Close()
	}
	both.Go(func() { copyTo(server, fromClient) })
	both.Go(func() { copyTo(client, server) })
	both.Wait()
}
