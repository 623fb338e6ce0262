package stack

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// progress shows how far a run is, until ctx ends.
func progress(ctx context.Context, o LoadOptions, run loadRun) {
	every, format := 5*time.Second, "%s\n"
	if o.Terminal {
		every, format = 250*time.Millisecond, "\r%s\x1b[K" // clears what a longer line has left
		defer fmt.Fprintln(o.Progress)
	}
	began, tick := time.Now(), time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		line := fmt.Sprintf("lanes %-3s  %3.0f of %.0f s  served of asked:", run.lanes, time.Since(began).Seconds(), o.Duration.Seconds())
		for i, r := range run.tenants {
			c := r.counts()
			line += fmt.Sprintf("  %s %d of %d", loadTenants[i].name, c.served, c.asked)
		}
		fmt.Fprintf(o.Progress, format, line)
	}
}

// printLoad prints the table and what it says in a sentence.
func printLoad(w io.Writer, runs []loadRun) error {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "lanes\ttenant\tasked\tserved\trefused\tunserved\tfirst token: median\tp95")
	for _, run := range runs {
		for i, tenant := range loadTenants {
			fmt.Fprintf(table, "%s\t%s\t%s\n", run.lanes, tenant.name, run.tenants[i].row())
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var took []string
	for _, run := range runs {
		took = append(took, run.took.Round(time.Second).String())
	}
	fmt.Fprintf(w, "\nTook %s. Unserved requests had no first token when their run ended; they count with the time they had waited.\n", strings.Join(took, " and "))
	if len(runs) == 2 && runs[0].took == runs[1].took {
		fmt.Fprintf(w, "A quiet tenant waited %s for its first token without lanes and %s with them.\n", seconds(runs[0].quiet()), seconds(runs[1].quiet()))
	}
	return nil
}

// quiet is the median time to the first token of the tenants that keep to their share.
func (run loadRun) quiet() (time.Duration, bool) {
	var all []time.Duration
	for _, r := range run.tenants[1:] {
		r.mu.Lock()
		all = append(all, r.firstTokens...)
		r.mu.Unlock()
	}
	return quantile(all, 0.5)
}

// row is the result as cells of the table.
func (r *served) row() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.tally
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%s\t%s", c.asked, c.served, c.refused, c.unserved,
		seconds(quantile(r.firstTokens, 0.5)), seconds(quantile(r.firstTokens, 0.95)))
}

// quantile sorts times and returns the one that a share of them does not exceed; false where there is none.
func quantile(times []time.Duration, share float64) (time.Duration, bool) {
	if len(times) == 0 {
		return 0, false
	}
	slices.Sort(times)
	return times[int(share*float64(len(times)-1))], true
}

func seconds(d time.Duration, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
