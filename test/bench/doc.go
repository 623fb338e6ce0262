// Package bench is the root of the benchmark module. It is a module of its own so that the peers Headgate is measured
// against never become dependencies of Headgate.
//
//	cmd/bench/   what Headgate costs next to a server that does nothing; `make bench`
//	noop/        that server: plain grpc-go, generated types, every message answered at once
//	load/        HTTP requests through Envoy, and the upstream behind it
//	direct/      recorded exchanges replayed straight to a server, without Envoy
//	usage/       processor time and allocations of a process, read from the outside
//
// Figures of a busy or small machine are only good as ratios: rounds take turns between the servers, ratios are taken within
// a round, and the range over the rounds is printed next to the median. Where the range is wide, believe the allocations
// and run longer (-rounds, -duration).
package bench
