package adaptive

import (
	"testing"
	"testing/synctest"
	"time"
)

// A whole answer pays its prompt's price until the first token is expected, as long as streams of its cost take; before any
// stream was seen, until its headers come.
func TestAWholeAnswerPaysItsPromptUntilTheFirstTokenIsExpected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(20, 4, 40))
		ask := func() *Permit {
			p := new(Permit)
			if got := r.c.Acquire(p, Request{Lane: "t", Cost: 12, Class: Whole, Forward: true}); got != Admitted {
				t.Fatalf("answer %d", got)
			}
			return p
		}
		p := ask()
		time.Sleep(time.Minute)
		r.numbers("no stream was seen", map[string]any{"activeCost": 12})
		p.Respond(Response{Class: Whole})
		r.numbers("its headers", map[string]any{"activeCost": 1})
		done(p)
		r.one(12, 3*time.Second, OK) // a stream
		time.Sleep(2 * time.Hour)    // two windows
		p = ask()
		waiter := r.ask("u", 10, Waiting)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		r.numbers("too early", map[string]any{"activeCost": 12})
		r.admitted("too early", waiter, false)
		waiter.Cancel()
		time.Sleep(2500*time.Millisecond + 1)
		r.numbers("when a stream's first token comes", map[string]any{"activeCost": 1})
		done(p)
		p = ask()
		done(p) // an end before that leaves nothing behind
		if r.c.expected.used != 0 {
			t.Errorf("expected first tokens are left: %b", r.c.expected.used)
		}
		r.empty()
	})
}

// What the streams of the present window took is enough to expect a first token by, when no window before it had any.
func TestAFirstTokenIsExpectedInTheFirstWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(20, 4, 40))
		r.one(12, 500*time.Millisecond, OK) // a stream
		p := new(Permit)
		if got := r.c.Acquire(p, Request{Lane: "t", Cost: 12, Class: Whole, Forward: true}); got != Admitted {
			t.Fatalf("answer %d", got)
		}
		waiter := r.ask("u", 10, Waiting)
		time.Sleep(500*time.Millisecond + 1)
		synctest.Wait()
		r.numbers("when a stream's first token comes", map[string]any{"activeCost": 11})
		r.admitted("then", waiter, true)
		done(p, waiter)
		r.empty()
	})
}

// A request that does not ask for a stream and is answered with one pays its prompt's price until its first token is seen,
// however long that takes, where a witness sees it.
func TestAStreamThatWasNotAskedForPaysUntilItsFirstTokenIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(20, 4, 40))
		r.one(12, 500*time.Millisecond, OK) // a stream
		p := new(Permit)
		if got := r.c.Acquire(p, Request{Lane: "t", Cost: 12, Class: Whole, Forward: true}); got != Admitted {
			t.Fatalf("answer %d", got)
		}
		time.Sleep(100 * time.Millisecond)
		p.Respond(Response{Class: Stream, Signal: FromWitness})
		time.Sleep(time.Minute)
		r.numbers("a minute after its headers", map[string]any{"activeCost": 12})
		p.FirstToken()
		r.numbers("at its first token", map[string]any{"activeCost": 1})
		done(p)
		r.empty()
	})
}

// Retry-After from one lane is that lane's; from a second one within that time it holds everybody, no longer than the longest wait.
func TestRetryAfterFromSeveralLanesHoldsDispatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(20, 4, 40)
		s.MaxWait = 5 * time.Second
		r := newRig(t, s)
		refuse := func(lane string, after time.Duration) {
			p := r.ask(lane, 1, Admitted)
			p.Forwarded()
			p.Respond(Response{Answer: AnswerRefused, RetryAfter: after})
			p.Done(Overload)
		}
		refuse("a", time.Hour)
		refuse("a", time.Hour)
		done(r.ask("b", 1, Admitted))
		refuse("b", 2*time.Second)
		w := r.ask("c", 1, Waiting)
		time.Sleep(2*time.Second - 1)
		synctest.Wait()
		r.admitted("a nanosecond early", w, false)
		time.Sleep(1)
		synctest.Wait()
		r.admitted("after two seconds", w, true)
		done(w)
		r.empty()
	})
}

// Headers that come at once say nothing: what is compared is how long streams take to their end.
func TestStreamsWithHeadersAtOnceAreComparedToTheirEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		for range 30 {
			p := r.ask("t", 10, Admitted)
			p.Forwarded()
			time.Sleep(time.Millisecond)
			p.Respond(Response{Class: Stream, Signal: FromHeaders, AtOnce: true})
			r.numbers("at its headers", map[string]any{"activeCost": 1})
			time.Sleep(999 * time.Millisecond)
			p.Done(OK)
		}
		if got := r.c.Snapshot().ShortLatencyEWMA; got < 90 || got > 110 {
			t.Errorf("latency %.1f ms per unit of cost, want 100", got)
		}
		r.empty()
	})
}
