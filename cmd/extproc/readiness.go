package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/pkg/lease"
)

// readiness is nil when Envoy should send work: the process serves and, where some route cluster cannot do without the
// lease store (leases.onStoreError is deny), the store answers. Liveness does not depend on it.
func (a *app) readiness() error {
	if !a.ready.Load() {
		return errors.New("starting or draining")
	}
	cfg := a.config.Load()
	if cfg.Leases.OnStoreError != "deny" {
		return nil
	}
	for _, cluster := range cfg.Clusters {
		if cluster.Lease.Mode == lease.ModeRequired || cluster.Lease.Mode == lease.ModeManaged {
			if err := a.leases.Healthy(context.Background()); err != nil {
				return fmt.Errorf("leases are denied: %w", err)
			}
			return nil
		}
	}
	return nil
}

// healthInterval is how often the gRPC health service follows readiness.
const healthInterval = 500 * time.Millisecond

// reportHealth keeps the gRPC health service up to date until ctx ends.
func (a *app) reportHealth(ctx context.Context) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = a.publishHealth()
		}
	}
}

// publishHealth answers the gRPC health service, for the process and for the processor, as readiness is now, and returns
// that. Whoever asks for readiness publishes it, so that the two ways to ask never disagree.
func (a *app) publishHealth() error {
	err := a.readiness()
	state := healthpb.HealthCheckResponse_SERVING
	if err != nil {
		state = healthpb.HealthCheckResponse_NOT_SERVING
	}
	a.health.SetServingStatus("", state)
	a.health.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, state)
	return err
}
