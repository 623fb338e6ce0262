// Command demo is `make run`: it starts Envoy, the sidecar and a demo upstream on this machine, says what to try, and
// stops everything on Ctrl-C. A second Ctrl-C kills what does not stop. `demo load` is `make demo-load`. `demo tools` only
// finds, and where needed installs, the programs that `make run` and `make test` use, and prints where they are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // the next signal ends this process, and with it its children
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	command := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("demo "+command, flag.ContinueOnError)
	switch command {
	case "":
		o := stack.RunOptions{Root: root, Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr}
		flags.StringVar(&o.Listen, "listen", "127.0.0.1:10000", "where Envoy listens, `host:port`")
		flags.StringVar(&o.Admin, "envoy-admin", "127.0.0.1:9901", "where Envoy's admin interface listens, `host:port`")
		flags.StringVar(&o.Upstream, "upstream", "127.0.0.1:9001", "where the demo upstream listens, `host:port`")
		if err := parse(flags, args); err != nil {
			return err
		}
		return stack.Run(ctx, o)
	case "load":
		o := stack.LoadOptions{Root: root, Environ: os.Environ(), Out: os.Stdout, Progress: os.Stderr, Terminal: isTerminal(os.Stderr)}
		flags.DurationVar(&o.Duration, "duration", 20*time.Second, "of each of the two runs")
		if err := parse(flags, args); err != nil {
			return err
		}
		return stack.Load(ctx, o)
	case "tools":
		if err := parse(flags, args); err != nil {
			return err
		}
		return tools(ctx, stack.Finder{Root: root, Progress: os.Stderr})
	}
	return fmt.Errorf("unknown command %q, want none, load or tools", command)
}

// parse reads flags, after which nothing may follow.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// isTerminal reports whether somebody may be watching: a pipe or a file gets no line that is written over.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

func tools(ctx context.Context, f stack.Finder) error {
	for _, find := range []func(context.Context) (string, error){f.Envoy, f.Redis, f.Valkey} {
		path, err := find(ctx)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
