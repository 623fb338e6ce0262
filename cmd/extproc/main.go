// Command extproc is the Headgate sidecar: an Envoy external processor that counts the bytes of request bodies against
// a memory budget, shares upstream capacity fairly among tenants and checks session leases.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(os.Stdin, os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "extproc: %v\n", err)
		os.Exit(1)
	}
}

// newCommand builds the command tree. Without a subcommand the sidecar serves.
func newCommand(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	var configPath string
	root := &cobra.Command{
		Use:   "extproc",
		Short: "Headgate, an Envoy external processor for byte admission, fair lanes and session leases",
		Long: `Headgate runs next to Envoy as an external processor (ext_proc). It counts the bytes of request bodies against a
budget derived from the protected process's memory limit, shares each route cluster's capacity fairly among tenants and
checks exclusive session leases before Envoy forwards.

Without a subcommand it serves.`,
		Example: `  extproc --config /etc/headgate/config.yaml
  extproc check --config config.yaml
  extproc envoy --config config.yaml > envoy.yaml`,
		Args:          knownCommand,
		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,
		RunE:                       func(c *cobra.Command, _ []string) error { return serve(c.Context(), configPath, os.Environ(), stderr) },
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().StringVarP(&configPath, "config", "c", "", "configuration file (default: $HEADGATE_CONFIG, else built-in defaults)")
	root.AddCommand(
		newServeCommand(&configPath, stderr),
		newCheckCommand(&configPath),
		newSchemaCommand(),
		newEnvoyCommand(&configPath),
		newDoctorCommand(&configPath),
		newHealthCommand(&configPath),
		newHashKeyCommand(),
		newTopCommand(&configPath),
		newLaneCommand(&configPath),
		newLeasesCommand(&configPath),
		newVersionCommand(),
	)
	return root
}

// knownCommand refuses what is no subcommand, with the ones that it may have been meant for.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("there is no command %q; extproc --help lists them", args[0])
}

func newServeCommand(configPath *string, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		Short:   "Serve until SIGTERM (the default)",
		Example: `  HEADGATE_LISTEN_GRPC=127.0.0.1:9002 extproc serve`,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return serve(c.Context(), *configPath, os.Environ(), stderr) },
	}
}
