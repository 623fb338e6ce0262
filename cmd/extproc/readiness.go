package main

import (
	"errors"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// readiness is nil when Envoy should send work: the process serves. The lease store is no part of it: most traffic needs no
// lease, and another sidecar has no better store. The health document names it when it does not answer.
func (a *app) readiness() error {
	if !a.ready.Load() {
		return errors.New("starting or draining")
	}
	return nil
}

// setReady changes readiness, for the probe and for the gRPC health service of the process and of the processor.
func (a *app) setReady(ready bool) {
	a.ready.Store(ready)
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthpb.HealthCheckResponse_SERVING
	}
	a.health.SetServingStatus("", state)
	a.health.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, state)
}
