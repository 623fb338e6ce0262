package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/test/bench/load"
)

// acquire takes a lease for each session and returns the headers that its requests go with.
func (a *arm) acquire(ctx context.Context) ([][]load.Header, error) {
	var all [][]load.Header
	for i := range leasedCount {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.api+"/v1/session-leases", strings.NewReader(`{"action":"acquire","model":"bench"}`))
		if err != nil {
			return nil, err
		}
		key := load.Header{Name: "authorization", Value: "Bearer " + apiKey}
		session := load.Header{Name: lease.OwnerHeader, Value: owner(i)}
		for _, h := range []load.Header{key, session, {Name: "content-type", Value: "application/json"}} {
			q.Header.Set(h.Name, h.Value)
		}
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			return nil, fmt.Errorf("acquire a lease: %w", err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("acquire a lease: %w", err)
		}
		var got struct {
			Generation int64 `json:"generation"`
		}
		if err := json.Unmarshal(body, &got); err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("acquire a lease: %s: %s", answer.Status, body)
		}
		all = append(all, []load.Header{key, session, {Name: lease.GenerationHeader, Value: strconv.FormatInt(got.Generation, 10)}})
	}
	return all, nil
}
