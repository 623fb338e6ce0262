// Package sim drives the real controller of package adaptive with simulated tenants and a simulated upstream.
//
// # Time
//
// Nothing here owns a clock. A run uses package time, so inside a testing/synctest bubble hours pass in seconds, and the
// controller under test is the one that ships: same timers, same locks, same windows.
//
// # Work
//
// A request has a cost c (as the gate would price it), a prefill p (time from forwarding to the first byte on an idle
// upstream) and a generation g (time the stream then lasts). It weighs c on the upstream until its first byte and one
// after it, so that its work is
//
//	w = c·p + g        [cost·s]
//
// A load of ρ means that the sum over the tenants of rate·E[w] is ρ·C, C being the upstream's capacity in cost units.
//
// # Upstream
//
// Every job in the upstream advances with the same speed f(n/C), n being the sum of the weights in service:
//
//	hard knee  f(x) = 1                          x <= 1
//	           f(x) = max(0.2, 1 - (x-1)) / x    x > 1     (beyond the knee throughput falls, latency more than doubles at 1.5)
//	soft knee  f(x) = 1 / sqrt(1 + x²)                     (throughput approaches C, latency rises from the start)
//
// A job that is not finished within the client's timeout is lost together with the work spent on it.
//
// # Goodput
//
// Work per second of the requests that finished, and whose first byte took at most twice as long as on an idle upstream.
// Waiting in the gate's queue does not count against it: it is bounded by the queue's own deadline and the same for all
// limits compared.
package sim
