package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

// leasesClient talks to the admin port of a running sidecar.
type leasesClient struct {
	configPath *string
	address    string
	tokenFile  string
}

func newLeasesCommand(configPath *string) *cobra.Command {
	c := &leasesClient{configPath: configPath}
	command := &cobra.Command{
		Use:   "leases",
		Short: "List session leases; end one, or a connection's cooldown",
		Long: `Shows and changes the session leases of a running sidecar, over its admin port. What it changes needs the token in
listen.adminTokenFile, and is written into the sidecar's log.`,
		Example: `  extproc leases list --events 20
  extproc leases end acct-1
  extproc leases wake acct-2`,
		Args: cobra.NoArgs,
	}
	command.PersistentFlags().StringVar(&c.address, "address", "", "host:port of the sidecar's admin (default: listen.admin of the configuration)")
	command.AddCommand(c.listCommand(), c.endCommand(), c.wakeCommand(), c.cooldownCommand())
	return command
}

func (c *leasesClient) listCommand() *cobra.Command {
	var pool string
	var events int
	var asJSON bool
	command := &cobra.Command{
		Use:   "list",
		Short: "List connections with their leases and cooldowns; owners and principals are opaque",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			query := url.Values{"events": {strconv.Itoa(events)}}
			if pool != "" {
				query.Set("pool", pool)
			}
			answer, err := c.call(command.Context(), http.MethodGet, "?"+query.Encode(), nil)
			if err != nil {
				return err
			}
			if asJSON {
				_, err = command.OutOrStdout().Write(answer)
				return err
			}
			return printLeases(command.OutOrStdout(), answer)
		},
	}
	command.Flags().StringVar(&pool, "pool", "", "this pool alone")
	command.Flags().IntVar(&events, "events", 0, "so many of the latest events of each pool")
	command.Flags().BoolVar(&asJSON, "json", false, "print the sidecar's answer as it is")
	return command
}

func (c *leasesClient) endCommand() *cobra.Command {
	op := admin.Operation{Action: "end"}
	command := c.operationCommand(&op, "end CONNECTION", "End the lease on a connection, whoever holds it; its next request is refused with LEASE_REQUIRED",
		func(out admin.Outcome) string {
			if !out.Done {
				return "nobody holds a lease on " + out.Connection
			}
			return fmt.Sprintf("ended the lease of %s on %s, generation %d", out.Lease.Owner, out.Connection, out.Lease.Generation)
		})
	command.Flags().StringVar((*string)(&op.Reason), "reason", "", fmt.Sprintf("why, for the history: one of %v (default the first)", admin.OperatorReasons()))
	return command
}

func (c *leasesClient) wakeCommand() *cobra.Command {
	op := admin.Operation{Action: "wake"}
	return c.operationCommand(&op, "wake CONNECTION", "End the cooldown of a connection: it gets requests again at once",
		func(out admin.Outcome) string {
			if !out.Done {
				return out.Connection + " is in no cooldown"
			}
			return "ended the cooldown of " + out.Connection
		})
}

func (c *leasesClient) cooldownCommand() *cobra.Command {
	op := admin.Operation{Action: "cooldown"}
	var d time.Duration
	command := c.operationCommand(&op, "cooldown CONNECTION", "Put a connection into cooldown: its lease moves at the next request, and nobody acquires it",
		func(out admin.Outcome) string {
			return fmt.Sprintf("%s is in cooldown for %v, or for leases.cooldown.max if that is shorter", out.Connection, d)
		})
	command.PreRun = func(*cobra.Command, []string) { op.For = d.String() }
	command.Flags().DurationVar(&d, "for", 5*time.Minute, "how long")
	return command
}

// operationCommand is a command that sends op for the connection it is given, and prints what says makes of the answer.
func (c *leasesClient) operationCommand(op *admin.Operation, use, short string, says func(admin.Outcome) string) *cobra.Command {
	command := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			op.Connection = args[0]
			out, err := c.operate(command.Context(), *op)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), says(out))
			return err
		},
	}
	command.Flags().StringVar(&op.Pool, "pool", "", "the pool; needed for a connection that the configuration has no more")
	command.Flags().StringVar(&c.tokenFile, "token-file", "", "file with the operators' token (default: listen.adminTokenFile of the configuration)")
	return command
}

// operate sends one operation.
func (c *leasesClient) operate(ctx context.Context, op admin.Operation) (admin.Outcome, error) {
	var out admin.Outcome
	body, err := json.Marshal(op)
	if err != nil {
		return out, fmt.Errorf("write the operation: %w", err)
	}
	answer, err := c.call(ctx, http.MethodPost, "", body)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("read the sidecar's answer: %w", err)
	}
	return out, nil
}

// call sends a request to the admin port, with the token where it changes something.
func (c *leasesClient) call(ctx context.Context, method, query string, body []byte) ([]byte, error) {
	listen := config.Listen{Admin: c.address, AdminTokenFile: c.tokenFile}
	if listen.Admin == "" || (method != http.MethodGet && listen.AdminTokenFile == "") {
		cfg, err := config.Load(*c.configPath, os.Environ())
		if err != nil {
			return nil, err
		}
		listen.Admin = cmp.Or(listen.Admin, cfg.Listen.Admin)
		listen.AdminTokenFile = cmp.Or(listen.AdminTokenFile, cfg.Listen.AdminTokenFile)
	}
	if listen.Admin == "" {
		return nil, errors.New("listen.admin is empty: the sidecar has no admin port")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+listen.Admin+"/v1/session-leases"+query, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method != http.MethodGet {
		token, err := listen.AdminToken()
		if err != nil {
			return nil, err
		}
		if token == "" {
			return nil, errors.New("no token: set listen.adminTokenFile, for the sidecar too, or --token-file")
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, noAnswer(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the sidecar's answer: %w", err)
	}
	// A listing of pools whose store does not answer is a listing all the same.
	if response.StatusCode != http.StatusOK && response.Header.Get("Content-Type") != "application/json" {
		return nil, fmt.Errorf("%s: %s", response.Status, oneLine(strings.TrimSpace(string(answer))))
	}
	return answer, nil
}

// printLeases writes a listing as a table.
func printLeases(w io.Writer, answer []byte) error {
	var listing struct {
		Pools []lease.PoolListing `json:"pools"`
	}
	if err := json.Unmarshal(answer, &listing); err != nil {
		return fmt.Errorf("read the sidecar's answer: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tCONNECTION\tSTATE\tOWNER\tPRINCIPAL\tGENERATION\tACQUIRED\tEXPIRES\tCOOLDOWN UNTIL")
	var failed []error
	for _, p := range listing.Pools {
		if p.Error != "" {
			failed = append(failed, fmt.Errorf("pool %s: %s", p.Pool, p.Error))
		}
		for _, c := range p.Connections {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", p.Pool, c.ID, c.State, holderColumns(c.Lease), formatTime(c.Cooldown))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range listing.Pools {
		for _, e := range p.Events {
			fmt.Fprintln(w, e.At.Format(time.RFC3339), p.Pool, e.Event, e.Connection, e.Owner, e.Generation, e.Reason)
		}
	}
	return errors.Join(failed...)
}

func holderColumns(l *lease.LeaseListing) string {
	if l == nil {
		return "-\t-\t-\t-\t-"
	}
	return fmt.Sprintf("%s\t%s\t%d\t%s\t%s", l.Owner, l.Principal, l.Generation, formatTime(&l.AcquiredAt), formatTime(&l.ExpiresAt))
}

func formatTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}
