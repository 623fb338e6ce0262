package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

func newCheckCommand(configPath *string) *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Check a configuration without serving; lists every fault with its path, and what is surely not meant",
		Example: `  extproc check --config config.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(*configPath, os.Environ())
			if err != nil {
				return err
			}
			for _, note := range cfg.Notes {
				fmt.Fprintln(c.OutOrStdout(), "note:", note)
			}
			fmt.Fprintln(c.OutOrStdout(), "ok, configuration", cfg.Hash())
			return nil
		},
	}
}

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file, for editors",
		Long: `Prints the JSON Schema of the configuration file. Editors with a YAML language server complete and check a file that
names it in its first line:

  # yaml-language-server: $schema=headgate.schema.json`,
		Example: `  extproc schema > headgate.schema.json`,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return config.Schema(c.OutOrStdout()) },
	}
}

func newEnvoyCommand(configPath *string) *cobra.Command {
	var o envoyconf.Options
	command := &cobra.Command{
		Use:   "envoy",
		Short: "Print the Envoy configuration that matches the sidecar's own",
		Long: `Prints Envoy configuration with the time-outs, limits, modes and addresses that the sidecar's configuration asks for:
the whole bootstrap, one part of it to paste into another, or the policies of Envoy Gateway or Istio.`,
		Example: `  extproc envoy --config config.yaml > envoy.yaml
  extproc envoy --part filter --envoy-version 1.37
  extproc envoy --for envoy-gateway --route chat --route embeddings > policies.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.StreamIdle < time.Second { // Envoy's 0 is for ever
				return fmt.Errorf("--stream-idle-timeout is %v, want at least 1s", o.StreamIdle)
			}
			cfg, err := config.Load(*configPath, os.Environ())
			if err != nil {
				return err
			}
			return envoyconf.Render(c.OutOrStdout(), cfg, o)
		},
	}
	command.Flags().StringVar((*string)(&o.For), "for", string(envoyconf.ForEnvoy), "envoy, envoy-gateway, istio-gateway or istio-workload")
	command.Flags().StringVar(&o.EnvoyVersion, "envoy-version", "", "the version that has to understand it, such as 1.37 (default 1.40)")
	command.Flags().StringVar(&o.Target.Namespace, "namespace", "", "of the Gateway, for envoy-gateway (default headgate)")
	command.Flags().StringVar(&o.Target.Gateway, "gateway", "", "name of the Gateway, for envoy-gateway (default headgate)")
	command.Flags().StringVar(&o.Target.Listener, "listener", "", "name of the Gateway's listener, for envoy-gateway (default http)")
	command.Flags().StringArrayVar(&o.Target.Routes, "route", nil, "an HTTPRoute to govern, for envoy-gateway; may be repeated (default chat)")
	command.Flags().StringVar(&o.Target.Label, "label", "", "KEY=VALUE of the pods, for istio-* (default istio=headgate-ingress, headgate=inbound)")
	command.Flags().StringVar((*string)(&o.Part), "part", string(envoyconf.All), "all, filter, cluster or routes")
	parts := []string{string(envoyconf.All), string(envoyconf.Filter), string(envoyconf.Cluster), string(envoyconf.Routes)}
	_ = command.RegisterFlagCompletionFunc("part", cobra.FixedCompletions(parts, cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	command.Flags().BoolVar(&o.FailOpen, "fail-open", false, "let requests pass unchecked while the sidecar is away")
	command.Flags().DurationVar(&o.StreamIdle, "stream-idle-timeout", envoyconf.DefaultStreamIdle,
		"how long an exchange may be silent in both directions, at least 1s")
	command.Flags().StringVar(&o.TLSDir, "tls-dir", envoyconf.DefaultTLSDir, "folder, as Envoy sees it, with tls.crt, tls.key and ca.crt; for listen.grpcTLS and listen.apiTLS")
	command.Flags().StringVar(&o.TLSName, "tls-name", envoyconf.DefaultTLSName, "DNS name that the sidecar's certificate must have, for the same")
	command.Flags().StringVar(&o.Listen, "listen", "", "Envoy's listener, host:port (default 127.0.0.1:10000)")
	command.Flags().StringVar(&o.Admin, "envoy-admin", "", "Envoy's admin address, host:port (default 127.0.0.1:9901)")
	command.Flags().StringVar(&o.Upstream, "upstream", "", "address of the upstream clusters, host:port (default 127.0.0.1:9001)")
	return command
}

func newHealthCommand(configPath *string) *cobra.Command {
	var path, address string
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "health",
		Short: "Ask a running sidecar whether it is ready; for probes in images without a shell",
		Long: `Asks a running sidecar whether it is ready, or alive. With --address the configuration is not read, so a fault in
its file does not fail the probe: the running sidecar keeps the configuration it has.`,
		Example: `  extproc health
  extproc health --address 127.0.0.1:9003 --path /livez`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if address != "" {
				return printHealth(c, "http://"+address+path, timeout)
			}
			cfg, err := config.Load(*configPath, os.Environ())
			if err != nil {
				return err
			}
			if cfg.Listen.Admin == "" {
				return errors.New("listen.admin is empty: the sidecar has no admin port")
			}
			return printHealth(c, "http://"+cfg.Listen.Admin+path, timeout)
		},
	}
	command.Flags().StringVar(&path, "path", "/readyz", "/readyz or /livez")
	_ = command.RegisterFlagCompletionFunc("path", cobra.FixedCompletions([]string{"/readyz", "/livez"}, cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	command.Flags().StringVar(&address, "address", "", "host:port of the sidecar's admin (default: listen.admin of the configuration)")
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "how long to wait for the answer")
	return command
}

// noAnswer tells where a sidecar was looked for, since that is what is wrong most often.
func noAnswer(err error) error {
	return fmt.Errorf("no sidecar answers; is one running with this listen.admin (--config, HEADGATE_LISTEN_ADMIN)? %w", err)
}

func printHealth(c *cobra.Command, url string, timeout time.Duration) error {
	client := http.Client{Timeout: timeout}
	response, err := client.Get(url)
	if err != nil {
		return noAnswer(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	text := strings.TrimSpace(string(answer))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	fmt.Fprintln(c.OutOrStdout(), text)
	return nil
}

func newHashKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "hash-key",
		Short:   "Print the keySHA256 of an API key read from standard input",
		Example: `  printf %s "$KEY" | extproc hash-key`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return errors.New("the key is read from standard input; as an argument it would show in the list of processes")
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			line, err := bufio.NewReader(io.LimitReader(c.InOrStdin(), 64<<10)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read the key: %w", err)
			}
			key := strings.TrimSpace(line)
			if key == "" {
				return errors.New("standard input has no key")
			}
			sum := sha256.Sum256([]byte(key))
			fmt.Fprintln(c.OutOrStdout(), hex.EncodeToString(sum[:]))
			return nil
		},
	}
}

// version is set by the linker for releases; other builds show what Go recorded.
var version = "dev"

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			fmt.Fprintf(c.OutOrStdout(), "headgate extproc %s %s\n", buildVersion(), runtime.Version())
			return nil
		},
	}
}

// buildVersion is the linker's version, or the commit that Go recorded.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || version != "dev" {
		return version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return version + "-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return version
}
