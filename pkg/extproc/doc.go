// Package extproc decides what becomes of one HTTP exchange that Envoy shows it, from its headers to its release.
//
// Envoy opens one gRPC stream per exchange (envoy.service.ext_proc.v3.ExternalProcessor/Process) and sends the headers and
// body of the request, and those of the response, as messages. Each message gets one reply of its own type. Until the
// decision is taken, the replies that would let Envoy contact the upstream are withheld, which is also what stops Envoy
// from reading more of the client's body. A refusal is an immediate response.
//
// # How an exchange runs
//
// One goroutine owns an exchange's state; exchange.run is its whole life:
//
//   - begin reads the facts that the headers state (facts.go) and finds out what Envoy will send (plan.go).
//   - decide passes the gates in their order (gates.go). A gate passes, holding what it needs, or refuses with a Verdict, or
//     is pending; then await, the only place that waits, takes in whatever happens next and the gate is tried again.
//   - admit sends the withheld replies (replies.go).
//   - After the decision the body is still counted (events.go). The first byte of the response gives the bytes back
//     (reservation.go) and is a sample of latency for the lanes (lanes.go, answer.go).
//   - conclude sends the refusal, if there is one; release gives back what is held.
//
// # Invariants
//
//   - A verdict is a value, not an error. An error ends the gRPC stream and means that the sidecar is at fault.
//   - Whatever is acquired is released exactly once, in reverse order, however the exchange ends.
//   - A body is never stored. A chunk is borrowed from gRPC's receive buffer, counted, scanned and returned; only in
//     full-duplex mode, where Envoy no longer has it, a withheld chunk stays until it is sent back.
//   - Every wait has an upper bound, and a client that leaves ends it.
//   - What a client sends is no label, key or log field as it is: tenants become lane names by an HMAC, and the headers
//     x-headgate-* that a client sends are removed.
//
// The package imports budget, adaptive and lease, which know neither each other nor Envoy.
package extproc
