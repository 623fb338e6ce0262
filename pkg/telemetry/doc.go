// Package telemetry sets OpenTelemetry up and declares every instrument in one place.
//
// Labels are bounded: route clusters come from Envoy's configuration, reasons from the verdict table. No tenant, owner,
// key or byte of a body is ever a label, an attribute or a log field. What changes with every request adds to counters
// and histograms; gauges are read when somebody scrapes.
package telemetry
