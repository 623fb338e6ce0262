// Command server is the upstream of the tests in a cluster, and the process that the sidecar protects in some of them: the
// demo upstream, and a way to use memory for a while.
//
//	server [--listen HOST:PORT]
//	server allocate BYTES DURATION    holds that much memory, all of it written, then ends
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "server: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "allocate" {
		return allocate(ctx, args[1], args[2])
	}
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	listen := flags.String("listen", "0.0.0.0:8080", "where to listen, `host:port`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	u, err := stack.NewUpstream(*listen)
	if err != nil {
		return err
	}
	<-ctx.Done()
	u.Close()
	return nil
}

// allocate holds memory until the time is over or ctx ends.
func allocate(ctx context.Context, size, duration string) error {
	bytes, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return fmt.Errorf("bytes to allocate: %w", err)
	}
	d, err := time.ParseDuration(duration)
	if err != nil {
		return fmt.Errorf("time to hold them: %w", err)
	}
	held := make([]byte, bytes)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	fmt.Println("allocated", len(held))
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	held[0] = 0 // in use until here
	return nil
}
