// Package memory finds out how much memory the protected process may use, and how near it is to that.
//
// A Ceiling holds every limit that applies to the process: those of its cgroup and the cgroups above it (v1 and v2), what
// the downward API states, the heap limit of a runtime, and the machine's memory. The tightest of them determines the
// byte Budget.
//
// A Monitor samples the signals of pressure each second: working set to limit, pressure stall information (PSI) and the
// counters of OOM kills. It turns them into a Severity with hysteresis, and reads the ceiling again so that an in-place
// resize is followed.
//
// # Invariants
//
//   - What cannot be read is never taken for "no limit" or "no pressure": the last known value holds, or the least budget.
//   - The working set, which leaves clean page cache and reclaimable slab out, is compared with the limits that the kernel
//     enforces on the same cgroup, and with nothing else.
//   - Critical pressure never refuses everything for ever: a trickle of requests passes, so that a garbage-collected process
//     gets to collect.
package memory
