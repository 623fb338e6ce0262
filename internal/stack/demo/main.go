// Command demo is `make run`: it starts Envoy, the sidecar and a demo upstream on this machine, says what to try, and
// stops everything on Ctrl-C. A second Ctrl-C kills what does not stop. `demo tools` only finds, and where needed
// installs, the programs that `make run` and `make test` use, and prints where they are.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/headgate/headgate/internal/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // the next signal ends this process, and with it its children
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "make run: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	if len(os.Args) > 1 && os.Args[1] == "tools" {
		return tools(ctx, stack.Finder{Root: root, Progress: os.Stderr})
	}
	return stack.Run(ctx, stack.RunOptions{Root: root, Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr})
}

func tools(ctx context.Context, f stack.Finder) error {
	for _, find := range []func(context.Context) (string, error){f.Envoy, f.Redis} {
		path, err := find(ctx)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
