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
//   - No more requests are let in than maxConcurrent says, of the cluster and of each lane.
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
// # Priority levels
//
// A lane has a queue and an account, a flow, at each priority level at which it asked for something; what is said of lanes above
// holds for the flows of a level, each level with a virtual time of its own. The levels share the cluster as those of Kubernetes'
// API Priority and Fairness do. Each is guaranteed its share of the limit; use is what it holds over that, and where requests are
// bounded too, the greater of the two uses (dominant resource fairness; Ghodsi et al., 2011). Of the levels with someone waiting
// that have use below 1 the highest is served, and when none has, the one whose use is least. So a level below its share has the
// next place that comes free, what a level does not use is lent in proportion to the shares, and none is starved. What a level
// holds is cost × time already: no account is needed between levels.
//
// A lane that runs as many requests as it may is out of the orders until one of them ends, and its flows are lifted when they
// return, as those of a lane that was idle. While only such lanes wait, or the cluster runs as many as it may, it is not the limit
// that holds anybody back: it neither grows nor is tried.
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
// What is compared is one population: streams from forwarding to their first token, or, where no stream is seen, whole
// answers to their end. The two are never pooled. A window's latency is the sum of its samples over the sum of their
// expected costs: the ratio of sums weighs a sample by its size, where the mean of ratios would let the fixed part of small
// requests drown the rest. The expected cost is the cost times a curve that is learned from how the samples within one
// window differ (see curve): on a public trace of LLM requests a sample's coefficient of variation is 0.8 without it, 0.2
// with it.
//
// The short average remembers as many samples as its noise demands. The noise is that of the windows' means about it, so
// that samples which share a cause, as those of one batch do, count as what they are. Samples of requests that were
// forwarded before the limit was last moved down are about another limit and do not count.
//
// The long average is what is normal: latency while the limit is not what keeps requests waiting, or, where it is, what the
// last trial says.
//
// # The knee
//
// Latency alone cannot tell a slow service from an overload, nor at a limit far above the knee what normal is. What a limit n
// buys is its throughput, T(n) = n/L(n) by Little's law. The elasticity of latency to the limit,
//
//	e = d log L / d log n  =  1 - d log T / d log n
//
// is 0 where more concurrency buys work in proportion, and 1 where all of it only queues. Kleinrock's power T/L is greatest at
// one half ("Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979).
//
// So a rise of latency begins a trial: when the limit binds and
//
//	(short - long) / long  >=  threshold + 2 standard errors
//
// the limit is lowered to 0.8, and e is measured between the two. If latency answered, the lower limit stays, and the trial goes
// on down while latency is not normal. If not, the limit grows back, and the latency there is normal. About every three minutes in
// which the limit binds a search does the same unprompted, down to the first step that costs work. The first search begins when
// the limit first binds and takes steps of one half, from wherever the limit started.
//
// An example. The limit is 64 and normal 10 ms per unit of cost. The service becomes twice as slow for a reason of its own:
// short is 20, the gradient 1, and a trial begins at 51. Latency there is 20 too: e = log(20/20)/log(64/51) = 0. The limit grows
// back to 64, and 20 ms are normal. Had the upstream lost half of its capacity of 64, latency would be 20 at 64 and 16 at 51:
// e = log(20/16)/log(64/51) = 0.98. The limit stays at 51, the gradient is still 0.6, and the next trial is at 40.
//
// Between trials the limit settles where latency is half of the threshold above normal: it grows more slowly the nearer it
// comes, and beyond goes down as slowly. There is no sawtooth.
//
// # Moving it
//
// Growth is a cubic function of time around the limit at which it was last stopped, as in TCP CUBIC (see growth): slow near
// there, and in proportion to the limit further on, doubled in 17 windows and eightfold in 33. Few samples in a window slow it
// down, since they tell too late.
//
// Critical pressure halves at once, at most once per window, and high pressure sheds a fifth; each sample of pressure counts
// once, and nothing grows until one is normal. Refusals and failures are shares of the answers to requests that were forwarded
// since the limit was last lowered, decaying over about 20 windows and leaving out the lane that has most of them: from one
// refusal in fifty, and three in all, they shed a fifth, and with failures added they stop growth. One tenant's exhausted key or
// broken requests change nothing. Retry-After of several lanes holds what waits until then, at most for the longest wait. Answers
// of the proxy, cancelled clients and refusals of our own teach nothing, and a limit that is hardly used returns to the initial
// one step by step.
//
// In shadow mode nothing is held back, so that a trial changes nothing that could be measured: it ends as one in which latency
// did not answer, and the limit says little about overload.
package adaptive
