// Package envoyconf renders the Envoy configuration that matches a sidecar configuration: the whole bootstrap of the
// demo, or the parts an existing Envoy needs (the ext_proc filter, the clusters, the routes).
//
// Invariants:
//
//   - What depends on the sidecar's settings is derived from them and nowhere written twice: message_timeout lies above
//     every wait of one decision, the connection buffer holds at least two evidence windows, the forwarded metadata
//     namespaces and request attributes are those the configured sources read.
//   - A route to a leased connection cannot be reached by a client that sends the routing header itself: it also
//     matches the dynamic metadata that only the processor can set.
//   - Clients never pass unprocessed: only the routes to the sidecar's own API turn the filter off, and errors of the
//     processor are a 503 unless failing open is asked for.
//   - envoy.yaml and the snippets next to it are this package's output; a test compares them and lets Envoy validate them.
package envoyconf

//go:generate go test . -run TestShippedFilesAreTheOutput -update
