package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// learning are lanes that adapt, four times as fast as by default, on the demo's routes to a language model and elsewhere.
const learning = `
clusters:
  chat: {lanes: {mode: enforce, virtualLanes: true, window: 250ms}}
  default: {lanes: {mode: enforce, virtualLanes: true, window: 250ms}}
`

// source is a tenant that sends requests at a rate, however slowly it is answered.
type source struct {
	tenant  string
	rate    float64 // a second
	request func(i int) request

	asked, served, refused, failed int // once it has been driven
}

// chat is a request for a completion: a stream of n tokens, one every ms, or an answer in one piece after n × ms.
func chat(stream bool, n, ms int) request {
	path := fmt.Sprintf("/v1/chat/completions?n=%d&ms=%d", n, ms)
	if !stream {
		path = fmt.Sprintf("/v1/chat/completions?n=%d&ms=%d", n, n*ms)
	}
	body := fmt.Sprintf(`{"model":"demo","stream":%v,"messages":[{"role":"user","content":"hello"}]}`, stream)
	return request{method: "POST", path: path, body: strings.NewReader(body), headers: map[string]string{"content-type": "application/json"}}
}

// always sends the same request.
func always(r func() request) func(int) request { return func(int) request { return r() } }

func get(path string) func(int) request {
	return always(func() request { return request{path: path} })
}

// drive sends what the sources send for d, and waits for all answers.
func drive(t *testing.T, s *stack.Stack, d time.Duration, sources ...*source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, from := range sources {
		c := client(t, false)
		c.Transport.(*http.Transport).MaxIdleConnsPerHost = 1000
		all.Go(func() {
			tick := time.NewTicker(time.Duration(float64(time.Second) / from.rate))
			defer tick.Stop()
			for i := 0; ; i++ {
				r := from.request(i)
				r.headers = withHeader(r.headers, "x-tenant-id", from.tenant)
				all.Go(func() {
					got, err := send(t.Context(), s, c, r)
					mu.Lock()
					defer mu.Unlock()
					from.asked++
					switch {
					case err == nil && got.status == 200:
						from.served++
					case err == nil && got.reason() != "":
						from.refused++
					default:
						from.failed++
					}
				})
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	all.Wait()
}

func withHeader(headers map[string]string, name, value string) map[string]string {
	with := map[string]string{name: value}
	for n, v := range headers {
		with[n] = v
	}
	return with
}

func limitOf(t *testing.T, s *stack.Stack, cluster string) float64 {
	t.Helper()
	limit, _ := lanesOf(t, s, cluster)["currentLimit"].(float64)
	return limit
}

// wantAllServed checks that at least a share of a source's requests were served and at most 1 % refused by us.
func wantAllServed(t *testing.T, s *stack.Stack, cluster string, from *source) {
	t.Helper()
	if share := float64(from.served) / float64(from.asked); share < 0.99 || float64(from.refused) > 0.01*float64(from.asked) {
		t.Errorf("%s: of %d asked %d were served, %d refused, %d failed; want at least 99 %% served, at most 1 %% refused (limit %v, %v)",
			from.tenant, from.asked, from.served, from.refused, from.failed, limitOf(t, s, cluster), lanesOf(t, s, cluster)["stepCounts"])
	}
}

// wantLimitKept checks that nothing has lowered the limit by more than a tenth.
func wantLimitKept(t *testing.T, s *stack.Stack, cluster string, before float64) {
	t.Helper()
	if limit := limitOf(t, s, cluster); limit < 0.9*before {
		t.Errorf("limit %v, want at least 0.9 of the %v before: %v", limit, before, lanesOf(t, s, cluster)["stepCounts"])
	}
}
