package lease

import (
	"context"
	"time"
)

// engine runs scripts: a Redis or Valkey, or the embedded one. Each script is atomic.
type engine interface {
	// run runs the calls, all of one pool, in one round trip where there is a network, and leaves an answer in each. With
	// replicas it waits for as many to confirm what the calls have written, at most for wait.
	run(ctx context.Context, calls []*call, replicas int, wait time.Duration)
	close() error
}

// call is one call of one script. Its answer may be read once the engine has returned.
type call struct {
	script  *script
	keys    []string
	args    []any
	write   bool // it changes something
	whole   bool // its text is sent, not its hash: one round trip, whatever the server knows
	confirm bool // replicas must confirm its answer before a client gets it, where the settings ask for replicas

	value     any
	err       error
	sent      bool // the store may have got it, whatever err says
	confirmed bool
}
