package endurance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// TestTheJudgeFindsFaults: a request that arrives twice, a connection with two owners and a request on a connection without its
// token are faults; a request with an older token is refused and is none.
func TestTheJudgeFindsFaults(t *testing.T) {
	for name, c := range map[string]struct {
		requests []string // name, connection, token, session
		statuses string
		fault    string // part of the only one; empty is none
	}{
		"once each":               {[]string{"a", "b", "c"}, "200 200 200", ""},
		"twice":                   {[]string{"a", "b", "a"}, "200 200 200", "request a arrived twice"},
		"one owner after another": {[]string{"a c1 7 s1", "b c1 8 s2", "c c1 8 s2"}, "200 200 200", ""},
		"a late one":              {[]string{"a c1 7 s1", "b c1 8 s2", "c c1 7 s1"}, "200 200 409", ""},
		"two owners at once":      {[]string{"a c1 7 s1", "b c1 7 s2"}, "200 200", "connection c1 has two owners with the token 7: s1 and s2"},
		"two connections":         {[]string{"a c1 7 s1", "b c2 7 s2"}, "200 200", ""},
		"no token":                {[]string{"a c1  s1"}, "400", "with the fencing token"},
	} {
		t.Run(name, func(t *testing.T) {
			ports, err := stack.FreePorts(1)
			if err != nil {
				t.Fatal(err)
			}
			j, err := newJudge(ports[0], 0)
			if err != nil {
				t.Fatal(err)
			}
			defer j.close()
			var statuses []string
			for _, text := range c.requests {
				statuses = append(statuses, fmt.Sprint(ask(t, ports[0], text)))
			}
			if got := strings.Join(statuses, " "); got != c.statuses {
				t.Errorf("answers %s, want %s", got, c.statuses)
			}
			switch faults := j.verdict(); {
			case c.fault == "" && len(faults) > 0:
				t.Errorf("found %q, want nothing", faults)
			case c.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.fault)):
				t.Errorf("found %q, want %q", faults, c.fault)
			}
		})
	}
}

// ask sends a request of the judge's table and returns the status.
func ask(t *testing.T, address, text string) int {
	t.Helper()
	q, err := http.NewRequest(http.MethodPost, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range strings.Split(text, " ") {
		q.Header.Set([]string{nameHeader, "X-Omniroute-Connection", "X-Omniroute-Lease-Generation", sessionHeader}[i], value)
	}
	in, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Body.Close()
	return in.StatusCode
}
