package lease

import "time"

// Observer is told what happens, for counters and gauges. Nil functions are skipped. They are called on the request path
// and must not block. No argument ever holds an owner, a key or anything else a client sent: pools, operations, outcomes
// and reasons are closed sets.
type Observer struct {
	// Answer is one action or check and its outcome: ACQUIRED, REUSED, RENEWED, RELEASED, INVALIDATED, MOVED, VALID,
	// COOLDOWN, FREE, ALLOWED (the store could not be asked and onStoreError is allow), or the reason of the refusal.
	Answer func(action, pool, outcome string)
	// Call is one call of the store; err is nil when it answered.
	Call func(script string, took time.Duration, err error)
	// Lost is a lease found lost while an exchange was in flight, with its end reason.
	Lost func(pool, reason string)
	// Breaker is a pool's circuit breaker entering a state: closed, half-open or open.
	Breaker func(pool, state string)
	// Pool is what the last sweep of a pool found.
	Pool func(pool string, active, cooling, expired int64)
}

func (o Observer) answer(action, pool, outcome string) {
	if o.Answer != nil {
		o.Answer(action, pool, outcome)
	}
}

func (o Observer) call(script string, took time.Duration, err error) {
	if o.Call != nil {
		o.Call(script, took, err)
	}
}

func (o Observer) lost(pool, reason string) {
	if o.Lost != nil {
		o.Lost(pool, reason)
	}
}

func (o Observer) breaker(pool, state string) {
	if o.Breaker != nil {
		o.Breaker(pool, state)
	}
}

func (o Observer) pool(pool string, active, cooling, expired int64) {
	if o.Pool != nil {
		o.Pool(pool, active, cooling, expired)
	}
}
