package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/pkg/config"
)

// serveHealth is a sidecar in this process that only has an admin port, with the given health document.
func serveHealth(health string) func(context.Context, ...string) error {
	return func(ctx context.Context, args ...string) error {
		c, err := config.Load(args[len(args)-1], os.Environ())
		if err != nil {
			return err
		}
		server := &http.Server{Addr: c.Listen.Admin, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/monitoring/health" {
				fmt.Fprint(w, health)
			}
		})}
		context.AfterFunc(ctx, func() { server.Close() })
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

func TestStackWithASidecarInThisProcess(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{
		InProcess: serveHealth(`{"exchanges":{"inFlight":2},"chatAdmission":{"inflightBytes":0,"maxInflightBytes":9,"lanes":[{"waiting":1}]},
			"adaptiveAdmission":{"chat":{"activeCost":3,"currentLimit":64}}}`),
		Overlay: "{decision: {maxWait: 20s}, bytes: {hardMaxBody: 1MiB}}",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if got := s.Sidecar.Config; got.Decision.MaxWait != 20*time.Second || got.Bytes.HardMaxBody != 1<<20 || got.Cluster("leased").Lease.Pool != "leased" {
		t.Errorf("settings: maxWait %v, hardMaxBody %d, pool %q, want the overlay over the demo", got.Decision.MaxWait, got.Bytes.HardMaxBody, got.Cluster("leased").Lease.Pool)
	}
	busy, err := s.Sidecar.Busy(t.Context())
	want := map[string]float64{"/exchanges/inFlight": 2, "/chatAdmission/lanes/0/waiting": 1, "/adaptiveAdmission/chat/activeCost": 3}
	if diff := cmp.Diff(want, busy); err != nil || diff != "" {
		t.Errorf("Busy: %v (-want +got):\n%s", err, diff)
	}
	if faults, err := s.Faults(t.Context()); err != nil || len(faults) != 0 {
		t.Errorf("Faults = %v, %v, want none", faults, err)
	}
	if err := s.Reconfigure("", "bytes: {hardMaxBody: 2MiB}"); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Load(s.ConfigFile(), nil); err != nil || c.Bytes.HardMaxBody != 2<<20 || !reflect.DeepEqual(c.Listen, s.Sidecar.Config.Listen) {
		t.Errorf("after Reconfigure: %+v, %v, want the new limit and the old addresses", c, err)
	}
}

func TestStartReportsASidecarThatFails(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{InProcess: func(context.Context, ...string) error { return errors.New("no budget") }})
	if err == nil || !strings.Contains(err.Error(), "no budget") {
		t.Errorf("Start = %v, want the sidecar's error", err)
	}
	if _, err := Start(t.Context(), Options{}); !errors.Is(err, errNoBinary) {
		t.Errorf("Start without a sidecar = %v, want %v", err, errNoBinary)
	}
	if _, err := Start(t.Context(), Options{Overlay: "byts: {}"}); err == nil || !strings.Contains(err.Error(), "byts") {
		t.Errorf("Start with an unknown key = %v, want an error that names it", err)
	}
}
