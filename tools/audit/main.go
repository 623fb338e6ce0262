// Command audit looks for known vulnerabilities in what the sidecar's binary calls, and for licences that its users have not
// agreed to. It prints one table, and exits with 1 when a line of it is a fault.
//
// The database of vulnerabilities is that of GOVULNDB, else https://vuln.go.dev, else, where that cannot be reached, the
// newest version of the module golang.org/x/vulndb that the Go module proxy has.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: audit ROOT")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	rows, err := audit(ctx, os.Args[1])
	print(os.Stdout, rows)
	if err != nil {
		fmt.Fprintln(os.Stderr, "audit:", err)
	}
	if err != nil || faults(rows) > 0 {
		os.Exit(1) //nolint:gocritic // nothing is left to cancel
	}
}

// row is one line of the table.
type row struct {
	what, which, finding string
	fault                bool
}

func audit(ctx context.Context, root string) ([]row, error) {
	dir, err := os.MkdirTemp("", "headgate-audit-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	found, vulnErr := vulnerabilities(ctx, root)
	licences, licenceErr := licencesOf(ctx, root, dir)
	return append(found, licences...), errors.Join(vulnErr, licenceErr)
}

func faults(rows []row) int {
	n := 0
	for _, r := range rows {
		if r.fault {
			n++
		}
	}
	return n
}

func print(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		verdict := "ok"
		if r.fault {
			verdict = "FAULT"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.what, r.which, r.finding, verdict)
	}
	_ = t.Flush() // standard output
}

// run runs a command in a folder and returns what it printed.
func run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var faults strings.Builder
	c.Stderr = &faults
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(faults.String()))
	}
	return out, nil
}

// tool returns the path of a tool of this module.
func tool(ctx context.Context, name string) (string, error) {
	out, err := run(ctx, ".", nil, "go", "tool", "-n", name)
	return strings.TrimSpace(string(out)), err
}
