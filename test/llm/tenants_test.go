//go:build llm

package llm

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// The server has 8 slots and takes 1.25 s for an answer of 25 tokens: it can do 6.4 a second.
const (
	slots    = 8
	tokens   = 25
	pause    = 50 * time.Millisecond
	capacity = slots * 1000.0 / (tokens * 50)
	seconds  = 30
)

// tenant is what a tenant sends, and then what came of it.
type tenant struct {
	Name   string  `json:"name"`
	SDK    string  `json:"sdk"`
	Rate   float64 `json:"rate"` // a second
	Tokens int     `json:"tokens"`
	Whole  int     `json:"whole"` // one request in so many is not a stream; 0: all are

	Asked    int            `json:"asked"`
	Served   int            `json:"served"`
	Unserved int            `json:"unserved"` // no first token when the run ended
	Errors   map[string]int `json:"errors"`   // as the library raised them, with who refused
	First    []float64      `json:"first"`    // seconds to the first token, sorted; of the unserved what they had waited
	Texts    []string       `json:"texts"`    // all different answers
}

func (n tenant) firstToken(share float64) float64 {
	if len(n.First) == 0 {
		return 0
	}
	return n.First[int(share*float64(len(n.First)-1))]
}

// cell is the time to the first token as the table has it.
func (n tenant) cell(share float64) string {
	if len(n.First) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", n.firstToken(share))
}

// refused is how many requests we have refused; provider how many the server has.
func (n tenant) refused() (ours, provider int) {
	for what, count := range n.Errors {
		if strings.HasSuffix(what, " upstream") {
			provider += count
		} else {
			ours += count
		}
	}
	return ours, provider
}

// scenario is one run.
type scenario struct {
	name    string
	lanes   string
	tenants []tenant
}

// crowd are two quiet tenants beside one that asks for ten times as much; together twice what the server can do.
func crowd(whole int) []tenant {
	return []tenant{
		{Name: "noisy", SDK: "openai", Rate: 10, Tokens: tokens, Whole: whole},
		{Name: "quiet-1", SDK: "openai", Rate: 1, Tokens: tokens, Whole: whole},
		{Name: "quiet-2", SDK: "anthropic", Rate: 1, Tokens: tokens, Whole: whole},
	}
}

// result is a run that is over.
type result struct {
	scenario
	limit  string // at the end
	signal string
}

func (r result) tenant(name string) tenant {
	return r.tenants[slices.IndexFunc(r.tenants, func(n tenant) bool { return n.Name == name })]
}

// goodput is how many answers a second were complete, of all tenants.
func (r result) goodput() float64 {
	served := 0
	for _, n := range r.tenants {
		served += n.Served
	}
	return float64(served) / seconds
}

// TestTenants drives the server with three tenants, with lanes and without, and prints what each was served.
func TestTenants(t *testing.T) {
	const enforce = "clusters: {chat: {lanes: {mode: enforce, virtualLanes: true}}}"
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "run\ttenant\tlibrary\tasked\tserved\trefused\tprovider's\tunserved\tfirst token: median\tp95\tlimit\tsignal")
	defer func() {
		_ = w.Flush()
		fmt.Fprintf(os.Stdout, "\n%d s each, capacity %.1f answers a second\n%s\n", seconds, capacity, table.String())
	}()
	results := map[string]result{}
	for _, c := range []scenario{
		{"no lanes", "clusters: {chat: {lanes: {mode: \"off\"}}}", crowd(0)},
		{"lanes", enforce, crowd(0)},
		{"lanes, headers only", "clusters: {chat: {lanes: {mode: enforce, virtualLanes: true, firstToken: headers}}}", crowd(0)},
		{"lanes, half in one piece", enforce, crowd(2)},
		{"lanes, one without quota", enforce, []tenant{
			{Name: "exhausted", SDK: "openai", Rate: 3, Tokens: tokens},
			{Name: "quiet-1", SDK: "openai", Rate: 2, Tokens: tokens},
			{Name: "quiet-2", SDK: "anthropic", Rate: 2, Tokens: tokens},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := play(t, c)
			results[c.name] = r
			for _, n := range r.tenants {
				ours, provider := n.refused()
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", r.name, n.Name, n.SDK, n.Asked, n.Served, ours, provider, n.Unserved,
					n.cell(0.5), n.cell(0.95), r.limit, r.signal)
			}
		})
	}
	if !t.Failed() {
		wantFair(t, results)
	}
}

// play makes a run on servers of its own.
func play(t *testing.T, c scenario) result {
	t.Helper()
	fmt.Printf("%s, %d s ...\n", c.name, seconds)
	s := start(t, fastAPI(t, slots, pause), c.lanes)
	var got struct{ Tenants []tenant }
	call(t, map[string]any{"do": "load", "base": s.Envoy.URL(), "seconds": seconds, "tenants": c.tenants}, &got)
	for i, n := range got.Tenants {
		n.SDK, n.Rate, n.Whole = c.tenants[i].SDK, c.tenants[i].Rate, c.tenants[i].Whole
		c.tenants[i] = n
		if len(n.Texts) > 1 {
			t.Errorf("%s got %d different answers, want the one there is: %q", n.Name, len(n.Texts), n.Texts)
		}
		for what := range n.Errors {
			if !strings.HasPrefix(what, "503 admission_") && what != "429 upstream" {
				t.Errorf("%s: the library raised %q, want nothing but refusals: %v", n.Name, what, n.Errors)
			}
		}
	}
	health, err := s.Sidecar.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lanes, _ := health["adaptiveAdmission"].(map[string]any)["chat"].(map[string]any)
	wantIdle(t, s)
	if lanes == nil {
		return result{c, "-", "-"}
	}
	return result{c, fmt.Sprint(lanes["currentLimit"]), fmt.Sprint(lanes["signal"])}
}

// wantFair checks what lanes promise.
func wantFair(t *testing.T, results map[string]result) {
	t.Helper()
	without := results["no lanes"]
	for name, share := range map[string]float64{"lanes": 0.85, "lanes, headers only": 0.75, "lanes, half in one piece": 0.85} {
		if got, most := results[name].goodput(), without.goodput(); got < share*most { // on a busy machine the server does less
			t.Errorf("%s: %.2f answers a second, want at least %.2f of the %.2f without lanes: the server is to be kept busy", name, got, share, most)
		}
	}
	for _, quiet := range []string{"quiet-1", "quiet-2"} {
		before := without.tenant(quiet).firstToken(0.5)
		with := results["lanes"].tenant(quiet)
		if got := with.firstToken(0.5); got > before/2 {
			t.Errorf("lanes: %s had its first token after %.2f s (median), without lanes after %.2f s; want half at most", quiet, got, before)
		}
		if share := float64(with.Served) / float64(with.Asked); share < 0.85 {
			t.Errorf("lanes: %s was served %d of %d, want at least 0.85: it asks for less than its share", quiet, with.Served, with.Asked)
		}
		beside := results["lanes, one without quota"].tenant(quiet)
		if ours, _ := beside.refused(); ours > 0 || beside.firstToken(0.5) > 1 {
			t.Errorf("beside a tenant without quota %s was refused %d times and had its first token after %.2f s (median), want no refusal and less than 1 s",
				quiet, ours, beside.firstToken(0.5))
		}
	}
	if n := results["lanes, one without quota"].tenant("exhausted"); n.Errors["429 upstream"] < n.Asked*9/10 {
		t.Errorf("the tenant without quota got %v of %d, want the provider's 429 for nearly all", n.Errors, n.Asked)
	}
}
