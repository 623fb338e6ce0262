package stack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"time"
)

// LoadOptions are the settings of Load.
type LoadOptions struct {
	Root     string
	Environ  []string
	Duration time.Duration // of each of the two runs
	Out      io.Writer     // gets the table
	Progress io.Writer     // gets what is going on
	Terminal bool          // Progress is one: a line is written over and over, instead of one every few seconds

	Sidecar string // a built sidecar; empty builds it
}

// loadTenants send requests at their rates, by themselves: whoever is served slowly does not send less.
var loadTenants = []struct {
	name string
	rate float64 // a second
}{{"noisy", 20}, {"quiet-1", 2}, {"quiet-2", 2}}

// loadBody asks for a stream of 32 tokens.
const loadBody = `{"model":"demo","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"Is all quiet?"}]}`

// loadRun is one of the two runs.
type loadRun struct {
	lanes   string        // as the table calls it: off or on
	took    time.Duration // less than asked for where it was interrupted
	tenants []*served
}

// Load is `make demo-load`: it drives the demo upstream through Envoy with three tenants, one of them at ten times the others'
// rate and all together beyond what the upstream can do, without lanes and with them, and says what each was served. When
// ctx ends it says what was seen up to then.
func Load(ctx context.Context, o LoadOptions) error {
	if o.Duration <= 0 {
		return fmt.Errorf("a run of %v shows nothing: the duration must be above 0", o.Duration)
	}
	if o.Sidecar == "" {
		o.Sidecar = filepath.Join(o.Root, "build", "demo-extproc")
		fmt.Fprintln(o.Progress, "building the sidecar ...")
		if err := BuildSidecar(ctx, o.Root, o.Sidecar); err != nil {
			return interrupted(ctx, err)
		}
	}
	fmt.Fprintf(o.Progress, "two runs of %v: three tenants, together at about twice what the demo upstream can do\n", o.Duration)
	var runs []loadRun
	for _, run := range []struct{ lanes, mode string }{{"off", "off"}, {"on", "enforce"}} {
		r, err := loadOnce(ctx, o, run.lanes, run.mode)
		if err != nil {
			return interrupted(ctx, err)
		}
		runs = append(runs, r)
		if ctx.Err() != nil {
			fmt.Fprintln(o.Progress, "stopped; this is what was seen up to now")
			break
		}
	}
	return printLoad(o.Out, runs)
}

// loadOnce makes one run on a stack of its own. One that ctx interrupts is shorter.
func loadOnce(ctx context.Context, o LoadOptions, lanes, mode string) (loadRun, error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := Start(starting, Options{Binary: o.Sidecar, Environ: o.Environ, Overlay: fmt.Sprintf("clusters: {chat: {lanes: {mode: %s}}}", mode)})
	if err != nil {
		return loadRun{}, err
	}
	defer s.Stop()
	limited, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	run, began := loadRun{lanes: lanes, tenants: make([]*served, len(loadTenants))}, time.Now()
	var all sync.WaitGroup
	for i, tenant := range loadTenants {
		run.tenants[i] = &served{}
		all.Go(func() { run.tenants[i].drive(limited, s.Envoy.URL(), tenant.name, tenant.rate) })
	}
	all.Go(func() { progress(limited, o, run) })
	all.Wait()
	run.took = min(time.Since(began), o.Duration)
	return run, nil
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
