// Package e2e proves the product on a real Envoy: every test starts the sidecar's binary, an Envoy with the rendered
// configuration and the demo upstream, each on free ports.
//
// Invariants, checked by the harness at the end of every test:
//
//   - The sidecar is idle: no exchange, nothing waiting, no byte reserved, no cost active.
//   - Envoy has no complaint: no spurious message, no message timeout, no failed stream, nothing let through unchecked,
//     no header mutation rejected, unless the test says that it expects one.
package e2e
