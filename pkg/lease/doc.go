// Package lease gives managed clients exclusive use of upstream connections.
//
// A pool lists connections. An owner (an agent) acquires a lease: one connection of the pool, exclusively, for a time to
// live that renewals extend. Every lease has a generation: each request proves its lease with owner and generation,
// checked in the store immediately before it is forwarded.
//
// A lease also has a fencing token, drawn anew whenever it begins or moves to another connection: of all that one connection's
// upstream is sent, the token of a newer lease is larger. Generation and token come from one counter of the pool.
//
// Invariants:
//
//   - At any moment a connection has at most one live lease, and an owner at most one in a pool. Both rules are enforced
//     inside one Lua script per change. Every key a script touches is one of its KEYS, and all are in one hash slot: the
//     pool is the shard, and its leases are one hash (lua/rule.lua describes it).
//   - Which lease is live is decided in lua/rule.lua and nowhere else.
//   - For each connection: an exchange in flight whose lease has ended or has left the connection is told so, even where the
//     lease comes back to it.
//   - A generation or token is max(every one known in the pool or in the calling process + 1, the store's clock in ms), so it
//     grows over releases, expiries, a failover, a flushed store and a restart without persistence. No clock but the store's
//     is ever consulted for it, nor for an expiry; what was written by a clock far ahead of the present one is not live.
//   - Every key has a time to live, and ended leases leave at most one field for each connection.
//   - Every mutation is idempotent for the same owner and generation, so that a call whose answer was lost is made again. An
//     acquire whose answer was not awaited is undone in the background.
//   - Owners exist here only as SHA-256 (type Owner), API keys only as the hash of a hash; neither raw form can reach a
//     log line, an error, a metric or the store.
//   - A call that fails is tried again only for as long as the store may have hiccuped (a quarter of a second), and none is
//     made while it is known to be away: each pool has a circuit breaker, which a probe in the background closes.
//
// The embedded store runs the same scripts in an interpreter in this process, over maps (embedded.go, memory.go).
//
// What is checked where: CheckSyntax on arrival (no I/O), Service.Check last before forwarding (one round trip),
// Service.Keep while the exchange is in flight.
package lease
