package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
)

// Sources are where the answers come from. All must be set.
type Sources struct {
	Ready   func() error           // nil when ready; the error says why not
	Health  func() Health          // a fresh document
	Config  func() ([]byte, error) // the configuration in force as YAML, redacted
	Metrics http.Handler
	Leases  http.Handler // state and history of the lease pools
	Operate http.Handler // what operators change in them
	Board   *Board
	LaneOf  func(tenant string) string // the name of a tenant's lane
	Hosts   func() []string            // names under which it may be reached, besides loopback names and addresses
}

// Handler serves the admin endpoints.
func Handler(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			text(w, http.StatusServiceUnavailable, fmt.Sprintf("not ready: %v\n", err))
			return
		}
		text(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /api/monitoring/health", func(w http.ResponseWriter, _ *http.Request) { document(w, s.Health()) })
	mux.HandleFunc("POST /api/monitoring/lane", func(w http.ResponseWriter, r *http.Request) { lane(w, r, s.LaneOf) })
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		yaml, err := s.Config()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(yaml)
	})
	mux.Handle("GET /metrics", s.Metrics)
	mux.Handle("GET /v1/session-leases", s.Leases)
	mux.Handle("POST /v1/session-leases", s.Operate)
	mux.HandleFunc("GET /{$}", s.Board.servePage)
	mux.HandleFunc("GET /events", s.Board.serveEvents)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return guard(mux, s.Hosts)
}

// maxTenant is the longest tenant whose lane is told, in bytes.
const maxTenant = 4096

// lane answers with the lane of the tenant in the request's body, which no access log has.
func lane(w http.ResponseWriter, r *http.Request, laneOf func(string) string) {
	tenant, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTenant))
	if err != nil || len(bytes.TrimSpace(tenant)) == 0 {
		http.Error(w, fmt.Sprintf("the body must be the name of a tenant, of at most %d bytes", maxTenant), http.StatusBadRequest)
		return
	}
	text(w, http.StatusOK, laneOf(string(tenant))+"\n")
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func document(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
