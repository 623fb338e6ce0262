// Package bench is the root of the benchmark module. It is a module of its own so that the peers Headgate is measured
// against never become dependencies of Headgate.
//
//	cmd/bench/   what Headgate costs next to what could stand in its place; `make bench`
//	noop/        a server that does nothing: plain grpc-go, generated types, every message answered at once
//	peers/       a module of its own again, for the servers of others
//	load/        HTTP requests through Envoy, as fast as they are answered or at a rate, and the upstream behind it
//	direct/      recorded exchanges replayed straight to a server, without Envoy
//	usage/       processor time and allocations of a process, read from the outside
//
// Figures of a busy or small machine are only good as ratios: rounds take turns between the servers, ratios are taken within
// a round, and the range over the rounds is printed next to the median. Where the range is wide, believe the allocations
// and run longer (-rounds, -duration).
package bench
