// Package lease gives managed clients exclusive use of upstream connections.
//
// A pool lists connections. An owner (an agent) acquires a lease: one connection of the pool, exclusively, for a time to
// live that renewals extend. Every lease has a generation, a fencing token: each request proves its lease with owner and
// generation, checked in the store immediately before it is forwarded, and the upstream is told the generation too.
//
// Invariants:
//
//   - At any moment a connection has at most one live lease, and an owner at most one in a pool. Both rules are enforced
//     inside one Lua script per change; every key a script touches is one of its KEYS, and all are in one hash slot: the
//     pool is the shard.
//   - A lease is live iff the owner's key and the connection's field in the pool's hash name each other and its expiry
//     lies after the store's clock. Losing either half to eviction, a partial restore or a mistaken command ends the
//     lease; it cannot make two of it.
//   - A generation is max(every generation of the pool known + 1, the store's clock in ms), so it grows over releases,
//     expiries, a flushed store and a restart without persistence. No clock but the store's is ever consulted for it, nor
//     for an expiry.
//   - Every key has a time to live. Scripts give it in the command that makes the key, or in the same script.
//   - Every mutation is idempotent for the same owner and generation, so a retry after a lost answer is harmless. An
//     acquire whose answer was not awaited is undone in the background.
//   - Owners exist here only as SHA-256 (type Owner), API keys only as the hash of a hash; neither raw form can reach a
//     log line, an error, a metric or the store.
//   - No call waits longer than the store's call timeout, or the caller's deadline if that is nearer, and a store that
//     keeps failing is not called at all: each pool has a circuit breaker.
//
// The embedded store is an in-process Redis-compatible server that runs the same scripts over an in-memory connection.
// It counts times to live down only when told to, which the store does every few seconds; because scripts compare
// expiries with the clock themselves, keys that stay a little longer change nothing.
//
// What is checked where: CheckSyntax on arrival (no I/O), Service.Check last before forwarding (one round trip),
// Service.Keep while the exchange is in flight.
package lease
