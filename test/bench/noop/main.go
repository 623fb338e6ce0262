// Command noop is the ext_proc server that Headgate is compared with: a plain grpc-go server with generated types that
// answers every message at once and governs nothing. What a server can cost less than this is the codec's doing, what it
// costs more is the price of its decisions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// maxMessage is the largest message the server takes: a body chunk can be a whole connection buffer of Envoy's.
const maxMessage = 64 << 20

func main() {
	listen := flag.String("listen", "127.0.0.1:9002", "address of the ext_proc service: host:port or unix:///path")
	admin := flag.String("admin", "127.0.0.1:9003", "address of /debug/pprof/")
	bare := flag.Bool("bare", false, "answer without generated types: what is left is gRPC's own")
	record := flag.String("record", "", "file to which the messages of the first exchange are written, one JSON object a line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *admin, *record, *bare); err != nil {
		fmt.Fprintln(os.Stderr, "noop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, admin, record string, withoutTypes bool) error {
	network := "tcp"
	if path, ok := strings.CutPrefix(listen, "unix://"); ok {
		network, listen = "unix", path
	}
	l, err := net.Listen(network, listen)
	if err != nil {
		return err
	}
	s := &server{}
	if record != "" {
		if s.recorder, err = newRecorder(record); err != nil {
			return err
		}
		defer s.recorder.close()
	}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(1 << 20)}
	if withoutTypes {
		options = append(options, grpc.ForceServerCodecV2(newBareCodec()))
	}
	g := grpc.NewServer(options...)
	if withoutTypes {
		bare{}.register(g)
	} else {
		extproc.RegisterExternalProcessorServer(g, s)
	}
	healthpb.RegisterHealthServer(g, health.NewServer())

	mux := http.NewServeMux() // the driver reads the allocation counters there
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	web := &http.Server{Addr: admin, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 2)
	go func() { failed <- web.ListenAndServe() }()
	go func() { failed <- g.Serve(l) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	g.Stop()
	return errors.Join(err, web.Close())
}
