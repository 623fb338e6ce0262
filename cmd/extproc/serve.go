package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
)

// serve runs the sidecar until ctx ends, then drains it.
func serve(ctx context.Context, path string, environ []string, stderr io.Writer) error {
	cfg, err := config.Load(path, environ)
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, stderr)
	for _, note := range cfg.Notes {
		log.Info("configuration note", "note", note)
	}
	useRedisLog(log)
	tuneGC(os.Getenv)
	a, err := newApp(cfg, log)
	if err != nil {
		return err
	}
	defer a.close()
	if err := a.listen(ctx, cfg); err != nil {
		return err
	}

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { a.monitor.Run(background) })
	running.Go(func() { a.board.Run(background) })
	running.Go(func() { a.watch(background, path, environ) })

	failed := a.start()
	a.setReady(true)
	log.Info("ready", "grpc", cfg.Listen.GRPC, "admin", cfg.Listen.Admin, "api", cfg.Listen.API, "config", cfg.Hash(), "version", buildVersion())
	select {
	case <-ctx.Done():
	case err := <-failed:
		return err
	}
	return a.drain()
}

// watch reloads the configuration on SIGHUP and when its file changes.
func (a *app) watch(ctx context.Context, path string, environ []string) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	w := config.NewWatcher(a.config.Load(), config.WatchOptions{
		Path: path, Environ: environ, Trigger: hup, Apply: a.apply, Log: a.log,
	})
	a.watcher.Store(w)
	w.Run(ctx)
}

// listen opens every listener before anything is served, so that a taken address is known at once.
func (a *app) listen(ctx context.Context, cfg *config.Config) error {
	var err error
	if a.grpcListener, err = listen(ctx, "listen.grpc", cfg.Listen.GRPC); err != nil {
		return err
	}
	for _, h := range []struct {
		key, addr string
		handler   http.Handler
	}{
		{"listen.admin", cfg.Listen.Admin, admin.Handler(a.adminSources())},
		{"listen.metrics", cfg.Listen.Metrics, a.metricsOnly()},
		{"listen.api", cfg.Listen.API, a.api()},
	} {
		if h.addr == "" {
			continue
		}
		l, err := listen(ctx, h.key, h.addr)
		if err != nil {
			return err
		}
		if h.key == "listen.api" {
			a.server.APIListensOn(l.Addr())
		}
		server := &http.Server{
			Handler: h.handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
			ErrorLog: httpFaults(h.key, a.log), MaxHeaderBytes: 64 << 10, Protocols: new(http.Protocols),
		}
		server.Protocols.SetHTTP1(true)
		a.http = append(a.http, httpServer{l, server})
		if h.key == "listen.api" && cfg.Listen.APITLS.Enabled() {
			if server.TLSConfig, err = serverTLS("listen.apiTLS", cfg.Listen.APITLS, "http/1.1", a.log); err != nil {
				return err
			}
		}
	}
	return nil
}

// httpServer is one HTTP server and the listener it will serve.
type httpServer struct {
	listener net.Listener
	server   *http.Server
}

// start serves; what it returns yields the error of a server that failed.
func (a *app) start() <-chan error {
	failed := make(chan error, 1+len(a.http))
	go func() {
		if err := a.grpc.Serve(a.grpcListener); err != nil {
			failed <- fmt.Errorf("serve gRPC: %w", err)
		}
	}()
	for _, h := range a.http {
		go func() {
			serve := h.server.Serve
			if h.server.TLSConfig != nil {
				serve = func(l net.Listener) error { return h.server.ServeTLS(l, "", "") }
			}
			if err := serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve HTTP on %s: %w", h.listener.Addr(), err)
			}
		}()
	}
	return failed
}

// drain ends the process without a client noticing: not ready at once, new work still served while Envoy finds out,
// then waiters are refused, held exchanges are let go and, when the grace is over, whatever is left is cut.
func (a *app) drain() error {
	shutdown := a.config.Load().Shutdown
	a.setReady(false)
	a.log.Info("draining", "drain", shutdown.Drain, "grace", shutdown.Grace, "in_flight", a.server.Active())
	deadline := time.NewTimer(shutdown.Grace)
	defer deadline.Stop()
	window := time.NewTimer(min(shutdown.Drain, shutdown.Grace))
	defer window.Stop()
	<-window.C

	a.lanes.Shutdown()
	a.renewLeases()
	a.server.LetGo()
	stopped := make(chan struct{})
	go func() {
		a.grpc.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-deadline.C:
		a.log.Warn("grace is over: cutting exchanges", "in_flight", a.server.Active())
		a.grpc.Stop()
		<-stopped
	}
	a.board.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, h := range a.http {
		if err := h.server.Shutdown(ctx); err != nil {
			_ = h.server.Close()
		}
	}
	a.log.Info("stopped", "in_flight", a.server.Active())
	return nil
}

// renewLeases gives the leases of the exchanges that are about to be let go their full time to live: their responses stream on,
// and nobody renews them any more.
func (a *app) renewLeases() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if n := a.leases.RenewHeld(ctx); n > 0 {
		a.log.Info("renewed the leases of exchanges in flight", "leases", n)
	}
}

// openTimeout bounds the beginning of a connection to the gRPC listener, its TLS handshake too.
const openTimeout = 10 * time.Second

// grpcOptions are the options of the gRPC server.
func grpcOptions(s config.ServerTLS, log *slog.Logger) ([]grpc.ServerOption, error) {
	options := append(extproc.ServerOptions(), grpc.ConnectionTimeout(openTimeout))
	if !s.Enabled() {
		return options, nil
	}
	t, err := serverTLS("listen.grpcTLS", s, "h2", log)
	if err != nil {
		return nil, err
	}
	return append(options, grpc.Creds(grpcCredentials(t, log))), nil
}

// newGRPC makes the gRPC server with the standard health service on it.
func newGRPC(options []grpc.ServerOption) (*grpc.Server, *health.Server) {
	g, h := grpc.NewServer(options...), health.NewServer()
	healthpb.RegisterHealthServer(g, h)
	return g, h
}

// newLogger logs to stderr as the configuration says.
func newLogger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // validated
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}
