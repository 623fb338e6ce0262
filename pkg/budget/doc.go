// Package budget keeps the bytes of heavy request bodies within what the protected process can hold.
//
// One Controller owns one process-wide byte budget. A heavy body reserves its bytes before it is let in, grows the
// reservation as more arrive, and gives it back once. Bodies that find no room wait, bounded in time and in bytes, and
// are served fairly among keys; everything else is refused at once with a Reason. The budget is derived from the
// protected process's memory ceiling, and its memory pressure decides how long a waiter may wait: both come from package
// memory.
//
// # Invariants
//
// They hold whenever no call is in progress, and the tests assert them after every step:
//
//   - Inflight bytes are the sum of the live holds' bytes, and slots in use are the number of live holds.
//   - Nothing is granted that makes inflight bytes exceed the budget. Only SetBudget with a smaller budget leaves them
//     above it; then nothing is granted until enough has drained. Free bytes are never counted below zero.
//   - A reservation is all-or-nothing over its count slot and its bytes.
//   - Queued bytes are the sum of the waiters' charges and the backlogs, and never above Queue.MaxQueuedBytes when one joins.
//   - A wait ends exactly once: granted, refused, or cancelled. Grant, deadline and cancellation are decided
//     under one lock; a grant that nobody took is handed to the next waiter.
//   - The waiter at the front of the queue does not fit, or would exceed its key's fair share with what others are guaranteed:
//     capacity that it may use is never idle.
//
// # Who is served next
//
// Waiters are first in, first out within a key, and keys take turns. A waiter that does not fit keeps its turn while
// smaller ones of other keys are served, twice; from then on what becomes free is reserved for it. Whoever arrives
// while anybody waits joins the queue, even if it would fit, so that a stream of small bodies cannot pass a large one.
//
// Growth of a hold goes first: it takes free bytes whoever waits, and when it has to wait it stands before the new
// reservations of its key and is not stopped by what is reserved for another waiter. Its bytes are already in memory, and
// only finishing gives them back; nobody is starved, because only what is in flight grows, and no further than its
// body. Two uploads that wait for each other's bytes are parted by their deadlines.
//
// A key that is refused although it holds less than its fair share, the budget divided by the keys that are there, is
// guaranteed what it lacked for a while: other keys get what is free of it only up to their fair shares. Without that a busy
// key that got everything at one moment would leave nothing to whoever comes before it all comes back.
//
// # Who gives way
//
// The valve on waiting bytes is as fair as the queue behind it: when it is full, the latest entry of the key with most waiting
// bytes is refused, which may be the newcomer. Bytes reserved ahead of what arrived go back as soon as somebody lacks them.
//
// # How long
//
// A wait's length is fixed when it begins: Queue.MaxWait under high pressure or when a count slot is what is missing,
// the shorter of Queue.MaxWait and Queue.CalmWait when bytes are missing under normal pressure, and never more than the
// caller allows. A wait of zero is a refusal at once. Under critical pressure nothing waits: new requests, growth that finds
// no room, and all who are waiting when the pressure turns critical are refused with ResourcePressure. Only the trickle that
// memory.Monitor.Shed lets through is served.
package budget
