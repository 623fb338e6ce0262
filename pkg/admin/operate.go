package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// LeaseOperator is what operators can do to leases and connections.
type LeaseOperator interface {
	// EndLease ends the lease on a connection, whoever holds it; LEASE_REQUIRED where nobody does.
	EndLease(ctx context.Context, pool, connection string, why lease.EndReason) (lease.LeaseListing, *lease.Refusal)
	// SetCooldown puts a connection into cooldown.
	SetCooldown(ctx context.Context, pool, connection string, d time.Duration) *lease.Refusal
	// EndCooldown ends a connection's cooldown, and says whether there was one.
	EndCooldown(ctx context.Context, pool, connection string) (ended bool, _ *lease.Refusal)
}

// Operations are what POST /v1/session-leases needs. All must be set.
type Operations struct {
	Leases LeaseOperator
	PoolOf func(connection string) string // the pool that has it; empty where none has
	Token  func() (string, error)         // what callers must present; empty: nobody may change anything
	Log    *slog.Logger                   // gets a line for each operation that was tried, and for each wrong token
}

// Operation is the body of a request: what to do to a connection.
type Operation struct {
	Action     string          `json:"action"` // end, wake or cooldown
	Connection string          `json:"connection"`
	Pool       string          `json:"pool,omitempty"`   // needed for connections that the configuration has no more
	Reason     lease.EndReason `json:"reason,omitempty"` // of an end; empty is CONNECTION_INELIGIBLE
	For        string          `json:"for,omitempty"`    // how long a cooldown takes, such as 5m

	cooldown time.Duration // For, as check has read it
}

// Outcome is the answer.
type Outcome struct {
	Pool       string              `json:"pool"`
	Connection string              `json:"connection"`
	Done       bool                `json:"done"`            // false: there was no lease, or no cooldown, to end
	Lease      *lease.LeaseListing `json:"lease,omitempty"` // that was ended
}

// OperatorReasons are why an operator may end a lease.
func OperatorReasons() []lease.EndReason {
	return []lease.EndReason{lease.ConnectionIneligible, lease.AuthorizationChanged, lease.HealthOrCooldown, lease.QuotaUnavailable}
}

const (
	maxOperation    = 16 << 10 // bytes of a body
	operateDeadline = 5 * time.Second
)

// Handler serves the operations. They change what others rely on, so they need the token although the admin port is not
// authenticated; and whatever reaches the store, or has not the token, is logged.
func (o Operations) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		status, err := o.authorize(r)
		if err != nil {
			o.Log.Warn("operator refused", "audit", true, "from", r.RemoteAddr, "error", err)
			http.Error(w, err.Error(), status)
			return
		}
		op, err := readOperation(w, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if op.Pool == "" {
			op.Pool = o.PoolOf(op.Connection)
		}
		if op.Pool == "" {
			http.Error(w, fmt.Sprintf("no pool has a connection %q", op.Connection), http.StatusNotFound)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), operateDeadline)
		defer cancel()
		outcome, refusal := o.perform(ctx, op)
		line := o.Log.With("audit", true, "action", op.Action, "pool", op.Pool, "connection", op.Connection, "from", r.RemoteAddr)
		if refusal != nil {
			line.Warn("operator failed", "reason", refusal.Reason)
			http.Error(w, refusal.Reason.Answer().Message, refusal.Reason.Answer().HTTP)
			return
		}
		if l := outcome.Lease; l != nil {
			line = line.With("owner", l.Owner, "principal", l.Principal, "generation", l.Generation, "why", op.Reason)
		}
		line.Info("operator acted", "done", outcome.Done, "for", op.For)
		document(w, outcome)
	})
}

// authorize compares the bearer token in constant time. The file is read each time, so that a new token needs no restart.
func (o Operations) authorize(r *http.Request) (status int, _ error) {
	want, err := o.Token()
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, errors.New("the operators' token cannot be read")
	case want == "":
		return http.StatusForbidden, errors.New("nothing can be changed here: listen.adminTokenFile is not set")
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, expected := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256([]byte(want))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], expected[:]) != 1 {
		return http.StatusUnauthorized, errors.New("wrong token, or none: send the one of listen.adminTokenFile as authorization: Bearer")
	}
	return 0, nil
}

// readOperation reads a body strictly.
func readOperation(w http.ResponseWriter, r *http.Request) (Operation, error) {
	var op Operation
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return op, errors.New("content-type must be application/json")
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOperation))
	d.DisallowUnknownFields()
	if err := d.Decode(&op); err != nil {
		return op, fmt.Errorf("read the operation: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return op, errors.New("read the operation: something follows it")
	}
	return op, op.check()
}

// check reports what is wrong with an operation, puts in what it leaves to the default, and reads its time.
func (op *Operation) check() error {
	if op.Connection == "" {
		return errors.New("connection: is empty")
	}
	if op.Action != "end" && op.Reason != "" {
		return fmt.Errorf("reason: %s has none", op.Action)
	}
	if op.Action != "cooldown" && op.For != "" {
		return fmt.Errorf("for: %s takes no time", op.Action)
	}
	switch op.Action {
	case "end":
		op.Reason = cmp.Or(op.Reason, OperatorReasons()[0])
		if !slices.Contains(OperatorReasons(), op.Reason) {
			return fmt.Errorf("reason: %q is none of %v", op.Reason, OperatorReasons())
		}
	case "cooldown":
		var err error
		if op.cooldown, err = time.ParseDuration(op.For); err != nil || op.cooldown <= 0 {
			return fmt.Errorf("for: %q is no time, such as 5m", op.For)
		}
	case "wake":
	default:
		return fmt.Errorf("action: %q is none of end, wake, cooldown", op.Action)
	}
	return nil
}

func (o Operations) perform(ctx context.Context, op Operation) (Outcome, *lease.Refusal) {
	out := Outcome{Pool: op.Pool, Connection: op.Connection}
	switch op.Action {
	case "end":
		ended, refusal := o.Leases.EndLease(ctx, op.Pool, op.Connection, op.Reason)
		if refusal != nil && refusal.Reason == lease.LeaseRequired {
			return out, nil // nobody holds it
		}
		out.Done = refusal == nil
		if out.Done {
			out.Lease = &ended
		}
		return out, refusal
	case "wake":
		done, refusal := o.Leases.EndCooldown(ctx, op.Pool, op.Connection)
		out.Done = done
		return out, refusal
	default:
		refusal := o.Leases.SetCooldown(ctx, op.Pool, op.Connection, op.cooldown)
		out.Done = refusal == nil
		return out, refusal
	}
}
