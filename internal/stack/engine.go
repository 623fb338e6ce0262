package stack

import (
	"context"
	"time"
)

// engine serves prompts as an inference server with continuous batching does, in miniature: so many run at a time, and the
// others wait in the order they came; one prompt is read at a time; and every token takes longer the more run beside it.
type engine struct {
	slots    chan struct{}
	reading  chan struct{} // one prompt is read at a time
	perToken time.Duration // of a prompt that is read
	step     time.Duration // of a token that is written, alone
	slowdown time.Duration // of a token, for each other request that runs
}

// newEngine has capacity for some 12 answers of 32 tokens a second.
func newEngine() *engine {
	return &engine{slots: make(chan struct{}, 8), reading: make(chan struct{}, 1), perToken: 50 * time.Microsecond, step: 10 * time.Millisecond, slowdown: time.Millisecond}
}

// generate waits for a slot, reads the prompt and calls yield for every token as it is written. It returns false when the
// client left or yield returned false.
func (e *engine) generate(ctx context.Context, prompt, tokens int, yield func(i int) bool) bool {
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-e.slots }()
	if !e.read(ctx, prompt) {
		return false
	}
	for i := range tokens {
		if !wait(ctx, e.step+time.Duration(len(e.slots)-1)*e.slowdown) || !yield(i) {
			return false
		}
	}
	return true
}

// read takes the time that the prompt needs, one prompt after the other.
func (e *engine) read(ctx context.Context, prompt int) bool {
	select {
	case e.reading <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-e.reading }()
	return wait(ctx, time.Duration(prompt)*e.perToken)
}
