// Package adaptive shares the capacity of one route cluster among tenants. It prices requests, adapts a limit on the cost
// in flight, queues what is above it so that tenants get equal shares of work, and settles with what each request really
// used. It does no I/O and knows neither Envoy nor HTTP; time is package time.
//
// # Invariants
//
//   - In enforce mode the places that are given never exceed the limit, except when the limit fell below what runs, or a
//     running request was raised.
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
// byte the cost drops to the generation cost, so that a stream of minutes does not hold the price of its prefill. The
// generation cost is higher by one for every contextQuantum tokens of the prompt, which the upstream keeps in memory and
// reads for every token it generates.
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
// A place is not a price. What a request takes of the limit is min(cost, max(1, limit × maxShare)); its lane pays the full
// cost. So a limit that is low for a bad minute locks no large request out, and no head waits for more than a quarter of
// the limit to come free. (Kubernetes' API priority and fairness caps the seats of a request in the same way.) Refused as
// oversized is only what costs more than the highest limit.
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
// # Latency
//
// A sample is the time from forwarding to the first byte. A window's latency is the sum of its samples over the sum of their
// expected costs: the ratio of sums weighs a sample by its size, where the mean of ratios would let the fixed part of small
// requests drown the rest. The expected cost is the cost times a curve that is learned from how the samples within one
// window differ (see curve). Without it the mix of sizes is both the noise and the bias of all that follows: on a public
// trace of LLM requests a sample's coefficient of variation is 0.8, with it 0.2.
//
// The short average follows the windows, each by its number of samples, and begins anew when the limit is lowered: requests
// forwarded before that tell about a limit that is gone, and count only when they took twice the normal time. Overload is
//
//	(short − long) / long  >=  threshold + 1.5 standard errors
//
// where the standard error comes from the scatter of single samples and the number of them behind both averages.
//
// The long average is what is normal, the latency of a calm upstream. An average over all times would follow a slowly
// rising limit upwards: with weight 0.1 it lags ten windows, growth is below two per cent a window, so the gradient stays
// under 0.2 and never tells. And a limit that falls to 0.8 when latency has risen by 1.25 ends up where it started as soon
// as latency is proportional to it, a ratchet without a restoring force. Therefore long learns only
//
//   - from requests that found little in flight, at most utilizationLow of the limit of better days, since their latency
//     is not this limit's doing;
//   - from all of them while the limit is not what binds, from the first few, and from those clearly better than normal.
//
// While shedding it does not move, except that it rises to the latency of calm requests by a factor of two in six minutes.
// An upstream that has become twice as slow for good is accepted in minutes, since at a low limit all requests find it
// calm; one that is a hundred times as slow is still considered overloaded after half an hour.
//
// # The knee
//
// A threshold on latency cannot be right for every upstream. One that queues is at its knee when latency starts to rise;
// one that shares, as batching inference does, is slower long before and still gains throughput. What tells them apart
// is the elasticity of latency to the limit (see slope), a by-product of the limit's own sawtooth. As long as it says that
// more concurrency pays, the threshold is 2.5 times as high. It also rights a normal that was learned wrong, as by a process
// that starts into an overload: where latency hardly answers to the limit, normal rises to it, up to twice what it was, and
// where latency answers more than in proportion, the whole sawtooth is above the knee and normal falls. When latency goes
// against the limit, something else was stronger, and nothing is concluded; when it nearly doubles at once, what was known is
// forgotten.
//
// A long overload leaves no trace in this: at 1.5 times the capacity the limit's mean over the last ten of thirty minutes is
// 0.9 to 1.1 of that over the first ten, on all upstreams simulated.
//
// # Moving it
//
// Latency counts as overload only when about half of the limit was used: with less in flight it cannot be our doing, and
// acting on it would make the limit of a quiet cluster a random walk.
//
// The rest is additive increase, multiplicative decrease. Critical pressure halves at once, at most once per window, and high
// pressure sheds a fifth; each sample of pressure counts once, and nothing grows until one is normal. Refusals and failures
// are shares of the answers to requests that were forwarded since the limit was last lowered, decaying over about 20
// windows and leaving out the lane that has most of them: from one refusal in fifty, and three in all, they shed a fifth, and
// with failures added they stop growth. One tenant's exhausted key or broken requests change nothing. Answers of the proxy,
// cancelled clients and refusals of our own teach nothing, and a limit that is hardly used returns to the initial
// one step by step. Growth starts with one step per window and gains a step every eight windows up to the maximum, for
// capacity that comes back.
//
// # What it does not do
//
// There are no probes that would lower the limit to find out what latency could be: they would refuse requests to learn
// what any quiet minute tells. A process that starts into an overload therefore works above the knee until the elasticity
// is known, for about a minute.
package adaptive
