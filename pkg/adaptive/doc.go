// Package adaptive shares the capacity of one route cluster among tenants. It prices requests, adapts a limit on the cost
// in flight, queues what is above it so that tenants get equal shares of work, and settles with what each request really
// used. It does no I/O and knows neither Envoy nor HTTP; time is package time.
//
// # Invariants
//
//   - In enforce mode the cost that is let in never exceeds the limit, except when the limit fell below what runs, a
//     running request was raised, or a request above the limit runs alone.
//   - After every call nobody waits who could be let in: releasing, cancelling, expiring, raising the limit and the
//     return to normal pressure dispatch in the same locked step.
//   - Grant, cancel and deadline are decided under one lock. A permit cancelled after its grant gives back what it was
//     granted, and the next in turn gets it at once.
//   - Counts and costs are sums over permits; when the last one ends they are zero, accounts in floating point included.
//   - A lane with anyone waiting or in flight is never forgotten.
//   - In shadow mode nobody is delayed or refused.
//   - The fast path (admitted at once) does not allocate. Permits are the caller's memory and the queues' nodes.
//
// # Price
//
// [Cost] adds one unit per started quantum of each feature of a body. What it prices is the prompt: at the first response
// byte the cost drops to the generation cost, so that a stream of minutes does not hold the price of its prefill.
//
// # Fair shares of work
//
// The order is start-time fair queueing (Goyal, Vin and Cheng, 1996) over lanes, with two changes because what is shared
// is not a link that sends one packet of known length at a time. Many requests run at once, and how long one will run is
// not known before it has.
//
// Work is cost × time held, in cost-seconds. Each lane has a virtual time, the work it has had divided by its weight; the
// lane furthest behind goes next. At dispatch a request is charged
//
//	e = cost × S        S = Σ work / Σ cost of recent requests, in seconds
//
// and metered from then on. While it runs, u(t) = ∫ cost dt is what it has used. With P the sum of e and U the sum of u over
// what a lane has in flight, and B its settled work, the lane's virtual time is
//
//	V(t) = B + max(P, U(t))
//
// The charge ahead keeps a lane from taking everything in the moment before its first request ends; metering makes a
// request that outlasts its estimate pay while it runs, instead of a lump at its end that would starve the lane for as
// long again. At the end e and u leave P and U, and u enters B: what counts in the long run is what was used, whether the
// estimate was good or not. All of it is O(1) per event, since U grows at the rate of the lane's cost in flight.
//
// A lane whose V grows while it waits sits in the order under an old, smaller key. Keys are brought up to date when a lane
// comes up, which is the only time it matters.
//
// Virtual time v is where a lane that comes back from idling starts: V := max(V, v). It saves no credit, because v has gone
// on, and it keeps its debt, because V stays. v moves in three ways.
//
//   - While someone waits, v follows the lanes that are served: v := max(v, min(V of the served, V of the furthest behind)).
//     The inner minimum matters when a lane is served out of turn: v at the key of a lane far ahead would lift everyone
//     who returns up to it, and forgive its debt.
//   - While nobody waits, v grows at the rate of all work in flight, at least as fast as any lane. Nobody gets into debt by
//     using what nobody else wants.
//   - While nothing runs it stands still: debts outlast idling. They end with the lane, a minute after its last request.
//
// # Out of turn
//
// When the head of the lane furthest behind does not fit, the furthest behind of the heads that do goes instead, then
// someone further back in the same lane: a gap is used rather than left. Two rules bound what that costs. A head passed
// over twice is reserved for, and nobody else, newcomers included, is let in before it. And a lane may only go out of turn
// while it is at most limit × S ahead, about what the cluster does in one service time; without that a tenant whose
// requests are small lives on gaps for ever, however deep in debt. (With requests of ten times the duration the Jain index
// over work is 0.87 without this rule, 0.999 with it.)
//
// A newcomer is treated as if it were queued and a dispatch followed. It goes first if it fits, its lane has nobody
// waiting, nothing is reserved, and it is not too far ahead. If its lane is not the furthest behind, it has passed over
// the head that is.
//
// A request above the limit is refused, unless it can run alone: a limit that is low for a bad minute must not lock large
// requests out for ever. One that was queued before the limit fell waits for its turn to run alone, and while pressure
// forbids that it does not stand in the way of others.
//
// # Data structures
//
// Lanes with waiters are kept in one heap per head cost, and a tournament over the 1001 costs holds the least key of each.
// The root is the lane furthest behind, a prefix is the furthest behind that fits; both take a number of steps that does
// not depend on the number of lanes, and entering costs the heap of one price. Deadlines are kept in a wheel of lists with
// exact times, so that the many who are granted long before their deadline enter and leave in O(1). One timer per
// controller, set only while someone waits, expires waiters and evaluates windows that nothing else would.
//
// # The limit
//
// Windows are evaluated when something happens after their end. Windows in which nothing happens are evaluated all at once,
// so that an idle controller costs nothing. The step from one limit to the next is a pure function of what is known and
// what the window showed.
//
// Utilisation is the integral of min(active cost, limit) over the integral of the limit. While someone waits it counts as
// full: what is free then is too small for those who wait, and a limit that held one request of cost 5 out of 8 would be
// at 0.62 and never grow.
//
// The latency of a window is the time from forwarding to the first byte, summed over its samples and divided by the sum of
// their costs. The ratio of sums weighs a sample by its cost; the mean of ratios would let the fixed part of small requests
// drown the rest. Samples of requests forwarded before the last shedding are left out, since they tell about the limit
// that is gone.
//
// The short average weighs windows by their number of samples n and forgets at the rate min(shortAlpha, n/30): a burst
// replaces it in two windows, and a trickle is averaged until there are about thirty samples. The spread c² of single
// samples is learned too, and gives the standard error c/√n of the average. Overload is
//
//	(short − long) / long  >=  threshold + standard error
//
// Latencies of prefill scatter by half or more of their mean. Without the second term a dozen samples a second lower the
// limit by chance several times a minute, and growth by one a window does not make up for it.
//
// The long average is what is normal. An average over all times follows a slowly rising limit upwards: with weight 0.1 it
// lags ten windows, growth is below two per cent a window, so the gradient stays under 0.2 and never tells. And a limit that
// falls to 0.8 when latency has risen by 1.25 ends up where it started as soon as latency is proportional to it, a ratchet
// without a restoring force. Therefore
//
//   - long learns only where the limit is known to be low enough: near the last trough (within 1.1 of the limit after the
//     last shedding), at low utilisation, before the first shedding, and when latency is clearly better than normal;
//   - it does not move while shedding;
//   - it stays within 1.3 of the best normal, which follows an improvement slowly and rises by 43 % an hour while it binds:
//     enough for a mix that changes over a day, too little for an overload to creep;
//   - at the least limit, where shedding cannot help any more, both rise by a factor of two in six minutes. An upstream
//     that has become twice as slow for good is accepted in minutes; one that is a hundred times as slow is still
//     considered overloaded after half an hour.
//
// A shedding discards the short average, and the next decision waits for a sample of what was forwarded after it. Latency
// counts as overload only when about half of the limit was used: with less in flight it cannot be our doing, and acting on
// it would make the limit of a quiet cluster a random walk.
//
// The rest is additive increase, multiplicative decrease. Critical pressure halves at once, at most once per window, high
// pressure and refusals by the upstream (from one answer in twenty) shed a fifth, errors and time-outs stop growth for a
// window, cancelled clients and refusals of our own teach nothing, and a limit that is hardly used returns to the initial
// one step by step. Growth starts with one step per window and gains a step every eight windows up to the maximum, for
// capacity that comes back.
//
// # What it does not do
//
// Normal is relative to what was seen first. A process that starts into an overload takes its latency for normal until a
// trough or a quiet moment shows a better one. There are no probes that would lower the limit to find out: they would
// refuse requests to learn what any quiet minute tells.
package adaptive
