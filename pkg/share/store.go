package share

import (
	"context"
	"time"
)

// Store is where members meet.
type Store interface {
	// Exchange writes a member's record and claim, and answers with what the group has.
	Exchange(ctx context.Context, group string, c Claim) (View, error)
	// Commit replaces the group's state, if its version is still the one given, and reports whether it did.
	Commit(ctx context.Context, group string, s Step) (bool, error)
	// Leave takes a member and its claim out.
	Leave(ctx context.Context, group, member string) error
}

// Claim is what a member writes.
type Claim struct {
	Member   string
	Record   []byte
	Want     int           // part of the limit
	Floor    int           // granted whatever the others claim
	Alone    int           // the most it takes when the store does not answer
	Window   time.Duration // a member is gone after validWindows of them, and forgotten after forgetWindows
	Most     int           // bound of the sum of all claims, with what members that are gone or have not come yet may take
	Limit    int           // of the group, where the store has none
	Replicas int           // as many as there should be
	Part     int           // the most that one which has not come yet takes
}

// View is what the store answers.
type View struct {
	Now     int64  // the store's clock, in milliseconds
	Version int64  // of the state; 0 is none
	State   []byte // nil is none
	Age     time.Duration
	Granted int
	Others  []Other // in no order
}

// Other is another member.
type Other struct {
	Member string
	Age    time.Duration // of its record
	Claim  int
	Record []byte
}

// Step is a new state.
type Step struct {
	Version int64 // the one it is made from
	At      int64 // when that was read, by the store's clock
	Limit   int
	State   []byte
	Window  time.Duration
}

const (
	validWindows  = 3
	forgetWindows = 120
)
