package stack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// LoadOptions are the settings of Load.
type LoadOptions struct {
	Root     string
	Environ  []string
	Duration time.Duration // of each of the two runs
	Out      io.Writer     // gets the table
	Progress io.Writer     // gets a line that is written over and over

	Sidecar string // a built sidecar; empty builds it
}

// loadTenants send requests at their rates, by themselves: whoever is served slowly does not send less.
var loadTenants = []struct {
	name string
	rate float64 // a second
}{{"noisy", 20}, {"quiet-1", 2}, {"quiet-2", 2}}

// loadBody asks for a stream of 32 tokens.
const loadBody = `{"model":"demo","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"Is all quiet?"}]}`

// loadOverlay is the demo's configuration with lanes in a mode, and room for what waits.
const loadOverlay = `clusters: {chat: {lanes: {mode: %s}}}`

// Load is `make demo-load`: it drives the demo upstream through Envoy with three tenants, one of them at ten times the others'
// rate and all together beyond what the upstream can do, without lanes and with them, and says what each was served.
func Load(ctx context.Context, o LoadOptions) error {
	if o.Sidecar == "" {
		o.Sidecar = o.Root + "/build/demo-extproc"
		fmt.Fprintln(o.Progress, "building the sidecar ...")
		if err := BuildSidecar(ctx, o.Root, o.Sidecar); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(o.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "lanes\ttenant\tasked\tserved\trefused\tunserved\tfirst token: median\tp95")
	for _, run := range []struct{ title, mode string }{{"off", "off"}, {"on", "enforce"}} {
		results, err := loadOnce(ctx, o, run.title, run.mode)
		if err != nil {
			return err
		}
		for i, tenant := range loadTenants {
			fmt.Fprintf(table, "%s\t%s\t%s\n", run.title, tenant.name, results[i].row())
		}
	}
	fmt.Fprintln(o.Progress)
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "\nEach run lasted %v. Unserved requests had no first token when it ended; they count with the time they had waited.\n", o.Duration)
	return nil
}

// loadOnce makes one run on a stack of its own.
func loadOnce(ctx context.Context, o LoadOptions, title, mode string) ([]*served, error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := Start(starting, Options{Binary: o.Sidecar, Environ: o.Environ, Overlay: fmt.Sprintf(loadOverlay, mode)})
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	limited, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	results := make([]*served, len(loadTenants))
	var all sync.WaitGroup
	for i, tenant := range loadTenants {
		results[i] = &served{}
		all.Go(func() { results[i].drive(limited, s.Envoy.URL(), tenant.name, tenant.rate) })
	}
	all.Go(func() { progress(limited, o.Progress, title, o.Duration, results) })
	all.Wait()
	return results, ctx.Err()
}

// progress shows how far a run is.
func progress(ctx context.Context, w io.Writer, title string, duration time.Duration, results []*served) {
	began, tick := time.Now(), time.NewTicker(500*time.Millisecond)
	defer tick.Stop()
	for {
		var text strings.Builder
		for i, r := range results {
			fmt.Fprintf(&text, "  %s %d/%d", loadTenants[i].name, r.counts().served, r.counts().asked)
		}
		fmt.Fprintf(w, "\rlanes %-3s  %2.0f of %.0f s  served/asked:%s   ", title, min(time.Since(began), duration).Seconds(), duration.Seconds(), text.String())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// served is what became of a tenant's requests.
type served struct {
	mu          sync.Mutex
	tally       servedCounts
	firstTokens []time.Duration // of those served, and of the unserved the time they had waited
}

type servedCounts struct{ asked, served, refused, unserved int }

func (r *served) counts() servedCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally
}

// drive sends requests at a rate until ctx ends, and waits for those under way.
func (r *served) drive(ctx context.Context, url, tenant string, rate float64) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		all.Go(func() { r.request(ctx, client, url, tenant) })
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// request sends one request and reads the response to its end.
func (r *served) request(ctx context.Context, client *http.Client, url, tenant string) {
	began := time.Now()
	r.note(func(c *servedCounts) { c.asked++ })
	first, status, err := firstToken(ctx, client, url, tenant)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil || first.IsZero():
		r.tally.unserved++
		r.firstTokens = append(r.firstTokens, time.Since(began))
	case status != http.StatusOK:
		r.tally.refused++
	default:
		r.tally.served++
		r.firstTokens = append(r.firstTokens, first.Sub(began))
	}
}

func (r *served) note(change func(*servedCounts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.tally)
}

// firstToken returns when the first byte of the response's body came. An error after it does not matter.
func firstToken(ctx context.Context, client *http.Client, url, tenant string) (first time.Time, status int, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader([]byte(loadBody)))
	if err != nil {
		return first, 0, err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Tenant-Id", tenant)
	response, err := client.Do(q)
	if err != nil {
		return first, 0, err
	}
	defer response.Body.Close()
	body := bufio.NewReader(response.Body)
	if _, err := body.ReadByte(); err != nil {
		return first, response.StatusCode, err
	}
	first = time.Now()
	_, _ = io.Copy(io.Discard, body) // cut off at the end of the run
	return first, response.StatusCode, nil
}

// row is the result as cells of the table.
func (r *served) row() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.firstTokens)
	at := func(share float64) string {
		if len(r.firstTokens) == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f s", r.firstTokens[int(share*float64(len(r.firstTokens)-1))].Seconds())
	}
	c := r.tally
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%s\t%s", c.asked, c.served, c.refused, c.unserved, at(0.5), at(0.95))
}
