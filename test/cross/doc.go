// Package cross sends every kind of request through every way in which Envoy hands bodies over, to every end that a request
// can have, through each version of Envoy that CROSS_ENVOYS names (versions separated by blanks, each installed
// from its Python wheel; empty is the Envoy that all tests use). It prints one table.
//
// The judges are what others wrote: the clients' libraries, Envoy's counters, and the upstream, which says what reached it.
// Behind every Envoy nothing may be left: the sidecar has nothing in flight, waiting or reserved, Envoy no open request and
// no complaint about the processor.
package cross
