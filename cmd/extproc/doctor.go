package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

// mostDump is the size of the largest config_dump that is read.
const mostDump = 256 << 20

func newDoctorCommand(configPath *string) *cobra.Command {
	var adminAddr, file string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Say what in a running Envoy does not fit the sidecar's configuration",
		Long: `Reads the configuration of a running Envoy (its config_dump) and compares it with the sidecar's: order of filters, modes,
time-outs, buffers, circuit breakers, attributes, metadata and claims that never arrive, and names of clusters. Each finding says
what would be right. The command fails when requests fail or pass unchecked by one of them.`,
		Example: `  extproc doctor --config config.yaml --envoy-admin 127.0.0.1:9901
  kubectl exec deploy/gateway -c envoy -- ... /config_dump > dump.json; extproc doctor --config config.yaml --config-dump dump.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(*configPath, os.Environ())
			if err != nil {
				return err
			}
			dump, err := readConfigDump(adminAddr, file)
			if err != nil {
				return err
			}
			found, err := envoyconf.Examine(cfg, dump)
			if err != nil {
				return err
			}
			return report(c.OutOrStdout(), found)
		},
	}
	command.Flags().StringVar(&adminAddr, "envoy-admin", "", "host:port of Envoy's admin interface")
	command.Flags().StringVar(&file, "config-dump", "", "file with the answer of /config_dump, instead of --envoy-admin")
	command.MarkFlagsOneRequired("envoy-admin", "config-dump")
	command.MarkFlagsMutuallyExclusive("envoy-admin", "config-dump")
	return command
}

// readConfigDump reads a dump from Envoy or from a file.
func readConfigDump(adminAddr, file string) ([]byte, error) {
	if file != "" {
		return os.ReadFile(file)
	}
	client := http.Client{Timeout: 30 * time.Second}
	url := "http://" + strings.TrimPrefix(adminAddr, "http://") + "/config_dump"
	answer, err := client.Get(url)
	if err != nil {
		return nil, fmt.Errorf("get the configuration of Envoy: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostDump))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %.200s", url, answer.Status, text)
	}
	return text, nil
}

// report prints findings; faults among them are an error.
func report(w io.Writer, found []envoyconf.Finding) error {
	faults := 0
	for _, f := range found {
		fmt.Fprintln(w, f)
		if f.Fault {
			faults++
		}
	}
	switch {
	case faults > 0:
		return fmt.Errorf("%d faults in Envoy's configuration", faults)
	case len(found) == 0:
		fmt.Fprintln(w, "ok, Envoy's configuration fits")
	}
	return nil
}
