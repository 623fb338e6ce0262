// Command cluster starts a Kubernetes node on this machine, in namespaces of its own, for tests and for trying the manifests
// out: `make cluster` and `make cluster-down`. Kubernetes, etcd, containerd, runc, the network plugins and CoreDNS are built
// from their Go modules; nothing is installed, and what runs ends with the node.
//
//	cluster up              builds what is missing, starts the node, imports the images and prints how to reach it
//	cluster down            ends the node and everything in it
//	cluster build           only builds the programs and the images
//	cluster exec COMMAND…   runs a command in the node's namespaces
//
// It needs root on Linux and a Go tool chain.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(os.Args) > 1 && os.Args[1] == "exec" {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	f, err := findFolders()
	if err != nil {
		return err
	}
	switch command {
	case "up":
		return up(ctx, f)
	case "down":
		return down(f)
	case "build":
		return build(ctx, f)
	case "exec":
		return execute(ctx, f, args[1:])
	case superviseCommand:
		return supervise(ctx, f)
	case nodeCommand:
		return runNode(ctx, f)
	}
	return fmt.Errorf("unknown command %q, want up, down, build or exec", command)
}

// build makes the programs and the images that are missing or no longer current.
func build(ctx context.Context, f folders) error {
	if err := buildPrograms(ctx, f); err != nil {
		return err
	}
	return buildImages(ctx, f)
}

// say prints a line of progress.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "cluster: "+format+"\n", args...) }
