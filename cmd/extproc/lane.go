package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/pkg/config"
)

func newLaneCommand(configPath *string) *cobra.Command {
	var address string
	command := &cobra.Command{
		Use:   "lane TENANT",
		Short: "Print the lane of a tenant in a running sidecar",
		Long: `Prints the name under which logs, access logs, the health document and the status page of a running sidecar show a tenant.
Such names are opaque and, unless replicas share fanout.secret, those of one process: ask the sidecar whose output you read.
The tenants in telemetry.tenantNames are shown by their own names.`,
		Example: `  extproc lane team-a
  extproc top --once | grep "$(extproc lane team-a)"`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			at := address
			if at == "" {
				cfg, err := config.Load(*configPath, os.Environ())
				if err != nil {
					return err
				}
				if at = cfg.Listen.Admin; at == "" {
					return errors.New("listen.admin is empty: the sidecar has no admin port")
				}
			}
			return printLane(c, at, args[0])
		},
	}
	command.Flags().StringVar(&address, "address", "", "host:port of the sidecar's admin (default: listen.admin of the configuration)")
	return command
}

func printLane(c *cobra.Command, address, tenant string) error {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Post("http://"+address+"/api/monitoring/lane", "text/plain", strings.NewReader(tenant))
	if err != nil {
		return noAnswer(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 8<<10))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(answer)))
	}
	fmt.Fprintln(c.OutOrStdout(), strings.TrimSpace(string(answer)))
	return nil
}
