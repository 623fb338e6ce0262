package main

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	concurrencyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/adaptive_concurrency/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	limitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/internal/stack"
)

const processorCluster = "headgate" // that the shipped configuration reaches the processor by

// withoutProcessor takes the processor, and what belongs to it, out of the shipped configuration.
func withoutProcessor(b *stack.Bootstrap) error { return inPlaceOfProcessor(b) }

// inPlaceOfProcessor puts other filters where the processor stands.
func inPlaceOfProcessor(b *stack.Bootstrap, filters ...*hcmv3.HttpFilter) error {
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		router := m.HttpFilters[len(m.HttpFilters)-1]
		m.HttpFilters = append(slices.Clone(filters), router)
		for _, r := range routesOf(m) {
			r.TypedPerFilterConfig = nil
		}
		return nil
	})
}

func routesOf(m *hcmv3.HttpConnectionManager) []*routev3.Route {
	return m.GetRouteConfig().VirtualHosts[0].Routes
}

func filter(name string, settings proto.Message) (*hcmv3.HttpFilter, error) {
	packed, err := anypb.New(settings)
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}}, nil
}

// withRateLimit asks a rate limit service about every request, by its tenant.
func withRateLimit(b *stack.Bootstrap) error {
	f, err := filter("envoy.filters.http.ratelimit", &limitv3.RateLimit{
		Domain: "bench", Timeout: durationpb.New(5 * time.Second), FailureModeDeny: true,
		RateLimitService: &ratelimitv3.RateLimitServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: processorCluster}}},
		},
	})
	if err != nil {
		return err
	}
	if err := inPlaceOfProcessor(b, f); err != nil {
		return err
	}
	b.Cluster(processorCluster).HealthChecks = nil // its health has another name
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		for _, r := range routesOf(m) {
			r.GetRoute().RateLimits = []*routev3.RateLimit{{Actions: []*routev3.RateLimit_Action{{
				ActionSpecifier: &routev3.RateLimit_Action_RequestHeaders_{
					RequestHeaders: &routev3.RateLimit_Action_RequestHeaders{HeaderName: "x-tenant-id", DescriptorKey: "tenant"}}}}}}
		}
		return nil
	})
}

// withEnvoysFilters buffers bodies and limits rate and concurrency with what Envoy has. The concurrency filter measures no
// least latency of its own, which would refuse requests that the others take.
func withEnvoysFilters(b *stack.Bootstrap) error {
	all := func(percent uint32) *corev3.RuntimeFractionalPercent {
		return &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: percent}}
	}
	var filters []*hcmv3.HttpFilter
	for _, f := range []struct {
		name     string
		settings proto.Message
	}{
		{"envoy.filters.http.local_ratelimit", &localv3.LocalRateLimit{
			StatPrefix: "bench", FilterEnabled: all(100), FilterEnforced: all(100),
			TokenBucket: &typev3.TokenBucket{MaxTokens: 1 << 30, TokensPerFill: wrapperspb.UInt32(1 << 30), FillInterval: durationpb.New(time.Second)},
		}},
		{"envoy.filters.http.adaptive_concurrency", &concurrencyv3.AdaptiveConcurrency{
			ConcurrencyControllerConfig: &concurrencyv3.AdaptiveConcurrency_GradientControllerConfig{
				GradientControllerConfig: &concurrencyv3.GradientControllerConfig{
					SampleAggregatePercentile: &typev3.Percent{Value: 50},
					ConcurrencyLimitParams: &concurrencyv3.GradientControllerConfig_ConcurrencyLimitCalculationParams{
						ConcurrencyUpdateInterval: durationpb.New(100 * time.Millisecond)},
					MinRttCalcParams: &concurrencyv3.GradientControllerConfig_MinimumRTTCalculationParams{
						FixedValue: durationpb.New(50 * time.Millisecond), MinConcurrency: wrapperspb.UInt32(500)},
				}},
		}},
		{"envoy.filters.http.buffer", &bufferv3.Buffer{MaxRequestBytes: wrapperspb.UInt32(50 << 20)}},
	} {
		made, err := filter(f.name, f.settings)
		if err != nil {
			return err
		}
		filters = append(filters, made)
	}
	return inPlaceOfProcessor(b, filters...)
}
