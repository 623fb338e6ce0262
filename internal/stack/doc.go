// Package stack starts what Headgate needs around itself: a real Envoy, a demo upstream, and the sidecar, for `make run`,
// the end-to-end tests and the benchmarks.
//
// Invariants:
//
//   - Nothing is left behind. Every child process is the leader of its own process group, the group is killed when the
//     child is stopped, and the kernel kills the child when this process dies first.
//   - Nothing is silent. A child that does not become ready, or dies, is an error that carries the end of its log; the
//     logs of children that work are not shown.
//   - Nothing is fixed but the ports of `make run`. Envoy picks its own ports in tests, everything else listens on free
//     ones, files live in temporary directories.
//   - What is missing is said, with what to install.
package stack
