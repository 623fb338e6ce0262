package extproc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/headgate/headgate/pkg/adaptive"
)

// The fan-out probe: a gateway that is about to turn one request into several asks, target by target, whether there is
// free capacity in the lane of the request's tenant. It is a look, not a hold, and best effort: a fault of ours answers
// "go ahead".

// probeRequest is the body of POST /v1/admission/probe.
type probeRequest struct {
	Parent  string       `json:"parent"` // token of the request that fans out (x-headgate-parent)
	Targets probeTargets `json:"targets"`
}

// probeTargets stops reading where there are too many: a target takes far more memory than its two bytes of JSON.
type probeTargets []probeTarget

// UnmarshalJSON reads a list of targets, strictly.
func (t *probeTargets) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return errors.New("targets: want a list")
	}
	*t = nil
	for d.More() {
		if len(*t) == maxProbeTargets {
			return fmt.Errorf("targets: want 1 to %d", maxProbeTargets)
		}
		var one probeTarget
		if err := d.Decode(&one); err != nil {
			return fmt.Errorf("targets[%d]: %w", len(*t), err)
		}
		*t = append(*t, one)
	}
	return nil
}

// probeTarget is one request that the gateway would make: what its body has, or the body itself.
type probeTarget struct {
	Cluster  string          `json:"cluster"`
	Stream   bool            `json:"stream"`
	Bytes    int64           `json:"bytes"`
	Tokens   int64           `json:"tokens"`
	Messages int64           `json:"messages"`
	Tools    int64           `json:"tools"`
	Fanout   int64           `json:"fanout"`
	Body     json.RawMessage `json:"body"`
}

// probeAnswer says, in the order of the targets, what to do with each.
type probeAnswer struct {
	Targets []probeDecision `json:"targets"`
	Admit   int             `json:"admit"`
	Skip    int             `json:"skip"` // as many as there are targets: answer 503
}

type probeDecision struct {
	Cluster  string `json:"cluster"`
	Decision string `json:"decision"` // admit or skip
}

// What a probe may carry, and how many are answered at once; each may take a few times its body in memory.
const (
	maxProbeTargets = 256
	maxProbes       = 32
)

// ProbeHandler answers POST /v1/admission/probe. A probe takes one of the places only once it is all there.
func (s *Server) ProbeHandler() http.Handler {
	places := make(chan struct{}, maxProbes)
	var memory probeMemory
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, release, refusal := memory.readProbeBody(w, r)
		defer release()
		if refusal != nil {
			writeProbeError(w, refusal.status, refusal)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-r.Context().Done():
			return
		}
		p, err := parseProbe(body)
		if err != nil {
			writeProbeError(w, http.StatusBadRequest, err)
			return
		}
		parent, err := s.parents.Verify(p.Parent)
		if err != nil {
			writeProbeError(w, http.StatusForbidden, errors.New("parent: the token is not valid"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.probe(parent, p.Targets))
	})
}

// parseProbe reads a probe, strictly.
func parseProbe(body []byte) (p probeRequest, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("the probe is not valid: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return p, errors.New("the probe is followed by something else")
	}
	if len(p.Targets) == 0 {
		return p, fmt.Errorf("targets: want 1 to %d, got none", maxProbeTargets)
	}
	for i, t := range p.Targets {
		if t.Cluster == "" {
			return p, fmt.Errorf("targets[%d].cluster is missing", i)
		}
		if min(t.Bytes, t.Tokens, t.Messages, t.Tools, t.Fanout) < 0 {
			return p, fmt.Errorf("targets[%d] has a negative number", i)
		}
	}
	return p, nil
}

// probe looks at all targets of a cluster at once, so that they compete with each other for what is free. A cluster that
// nobody has configured or used has all its capacity free, and is not made known by asking for it.
func (s *Server) probe(parent adaptive.Parent, targets []probeTarget) probeAnswer {
	answer := probeAnswer{Targets: make([]probeDecision, len(targets))}
	byCluster := map[string][]int{}
	for i, t := range targets {
		answer.Targets[i] = probeDecision{Cluster: t.Cluster, Decision: "admit"}
		byCluster[t.Cluster] = append(byCluster[t.Cluster], i)
	}
	p := s.policy.Load()
	for cluster, members := range byCluster {
		if _, configured := p.config.Clusters[cluster]; !configured && !s.clusters.knows(cluster) {
			continue
		}
		looks := make([]adaptive.Request, len(members))
		for j, i := range members {
			looks[j] = adaptive.Request{Lane: parent.Lane, Level: p.config.Priority.Unnamed(), Cost: targets[i].cost()}
		}
		for j, free := range s.lanes.Controller(cluster).TryAcquire(looks) {
			if !free {
				answer.Targets[members[j]].Decision = "skip"
			}
		}
	}
	for _, t := range answer.Targets {
		if t.Decision == "skip" {
			answer.Skip++
		}
	}
	answer.Admit = len(targets) - answer.Skip
	return answer
}

// cost prices a target on its own body: on what is said of it, or on the body itself.
func (t probeTarget) cost() int {
	f := adaptive.Features{
		Bytes: t.Bytes, Tokens: t.Tokens, Messages: t.Messages, Tools: t.Tools, Fanout: t.Fanout, Stream: t.Stream,
	}
	if t.Body == nil {
		return adaptive.Cost(f)
	}
	b := body{declared: undeclared, scans: true}
	b.scanner.Reset()
	b.scanner.Write(t.Body)
	b.seen = int64(len(t.Body))
	b.end()
	return b.cost()
}

func writeProbeError(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"error": map[string]string{"message": err.Error(), "type": "invalid_request_error", "code": "invalid_probe"},
	})
}
