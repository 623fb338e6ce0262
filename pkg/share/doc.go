// Package share lets sidecars before the same upstreams have one limit, and be fair to a tenant as one, through a Redis.
//
// It is a package of its own because it does what package adaptive must not, and package lease need not know of: it carries the
// reports of adaptive's controllers to and fro. All it knows of a limit is how to divide it.
//
// # A window of a member
//
// Once a window each member sends one command, a script on one hash. It writes the member's record, claims a part of the limit,
// and answers with the group's state and the other members' records. When the state is about a window old, the member takes the
// next step on the sum of the evidence (adaptive.Learner) and offers the result by a second command, which the store takes
// only if nobody else has offered one for the same version.
//
// So there is neither a leader nor an election: the state is in the store, the step is pure, and whoever comes first does
// it. A member that dies in the middle leaves nothing that another would have to find out about. A member that was frozen comes with an
// old version and is refused: the version is the fencing token.
//
// Time is the store's alone: ages are differences of its clock, and what a member measures itself are durations. Evidence that was
// written before the last step was read is not counted again.
//
// # Dividing the limit
//
// The limit is shared fairly among lanes first, by weight, as max-min fairness of their demands in all members (see divide);
// a member's part is what its lanes get in it. A tenant that reaches one replica gets the same as one that reaches all. What
// nobody demands is divided evenly. No part is below a floor, so that a member without traffic lets the first request in.
//
// Members take parts from a common stock: in the script a claim is granted as far as the other members' claims leave
// room under the limit. A part that grows waits for one that shrinks, and the sum of the parts in force is at no moment above the limit and
// the floors, however late a member is. A limit that falls is obeyed within a window.
//
// # Without the store
//
// A part is valid for three windows. After that its member goes on alone from there (see adaptive.Share): its limit may fall as its own
// evidence says, and its ceiling moves from its last part to an equal part of the last limit within 60 windows. Those of all members
// together are the last limit at every moment. The others take over its part after three windows, and
// until it is back, or forgotten after 120, the parts that are claimed leave room for it under maxLimit.
package share
