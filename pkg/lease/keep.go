package lease

import (
	"context"
	"sync"
	"time"
)

// LostStale is the reason of a lost lease that the store does not know any more: released, invalidated, or gone with the
// store's data. The other reasons are TTLExpired and MaxHold.
const LostStale EndReason = "STALE"

// LostReasons are all reasons that Observer.Lost is told.
func LostReasons() []EndReason { return []EndReason{LostStale, TTLExpired, MaxHold} }

// keepRetry is the pause after a renewal that the store did not answer.
const keepRetry = 250 * time.Millisecond

// keepers renews the leases of exchanges in flight, each lease once however many exchanges it has. Lock order: nothing is
// locked while keepers.mu is held, and no callback runs under it.
type keepers struct {
	mu      sync.Mutex
	byLease map[keepKey]*keeper
	closed  bool
	running sync.WaitGroup // renewals under way
}

type keepKey struct {
	pool       string
	owner      Owner
	generation int64
}

// keeper renews one lease. Its fields are guarded by keepers.mu.
type keeper struct {
	s          *Service
	key        keepKey
	principal  string
	timer      *time.Timer
	exchanges  map[*Keep]struct{} // nil once it has ended
	validUntil time.Time          // by this process's monotonic clock, counted from before the store was asked
	cutAt      time.Time          // when it has been held for as long as it may
}

// Keep is one exchange's share in the renewal of its lease. The zero value and nil do nothing.
type Keep struct {
	keeper *keeper
	onLost func(EndReason)
}

// Keep renews the lease of an exchange that is in flight, at a third of the time to live, until Stop, or until it has been
// held for maxHold. When the lease turns out to be lost, onLost is called once, on another goroutine; it must not block.
// Renewals that the store does not answer are repeated while the lease may still be valid.
//
// It does nothing for an unmanaged or unchecked request, or when renewInFlight is off.
func (s *Service) Keep(f Fence, onLost func(EndReason)) *Keep {
	v := s.view()
	if f.Unchecked || f.owner == "" || !v.settings.RenewInFlight {
		return nil
	}
	hold := &Keep{onLost: onLost}
	ks, key := &s.keepers, keepKey{f.Pool, f.owner, f.Generation}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.closed {
		return nil
	}
	k := ks.byLease[key]
	if k == nil {
		k = &keeper{s: s, key: key, principal: f.principal, exchanges: map[*Keep]struct{}{},
			validUntil: f.asked.Add(f.validFor), cutAt: f.asked.Add(f.holdLeft)}
		if ks.byLease == nil {
			ks.byLease = map[keepKey]*keeper{}
		}
		ks.byLease[key] = k
		k.timer = time.AfterFunc(k.nextLocked(v.ttl), k.fire)
	}
	k.exchanges[hold] = struct{}{}
	hold.keeper = k
	return hold
}

// Stop ends the exchange's share; the lease lives on until it expires. It is idempotent, and onLost is not called after it
// has returned unless it was under way.
func (h *Keep) Stop() {
	if h == nil || h.keeper == nil {
		return
	}
	k, ks := h.keeper, &h.keeper.s.keepers
	ks.mu.Lock()
	defer ks.mu.Unlock()
	delete(k.exchanges, h)
	if len(k.exchanges) == 0 {
		k.endLocked()
	}
}

// nextLocked is the time until a third of the time to live has passed since the last extension, or, for a lease that
// cannot be extended any more, until it ends.
func (k *keeper) nextLocked(ttl time.Duration) time.Duration {
	if !k.validUntil.Before(k.cutAt) {
		return time.Until(k.cutAt)
	}
	return max(time.Until(k.validUntil)-2*ttl/3, 0)
}

// endLocked forgets the keeper and returns its exchanges, none when it had ended before.
func (k *keeper) endLocked() map[*Keep]struct{} {
	ks := &k.s.keepers
	left := k.exchanges
	k.exchanges = nil
	k.timer.Stop()
	if ks.byLease[k.key] == k {
		delete(ks.byLease, k.key)
	}
	return left
}

// fire renews once and sets the next time.
func (k *keeper) fire() {
	ks := &k.s.keepers
	ks.mu.Lock()
	if ks.closed || len(k.exchanges) == 0 {
		ks.mu.Unlock()
		return
	}
	ks.running.Add(1)
	defer ks.running.Done()
	reason := k.overLocked()
	ks.mu.Unlock()
	if reason != "" {
		k.lost(reason)
		return
	}

	v := k.s.view()
	p, refusal := v.pool(k.key.pool)
	if refusal != nil { // the pool was taken out of the configuration
		k.lost(LostStale)
		return
	}
	asked := time.Now()
	r, err := v.store.call(context.Background(), p.name, v.store.scripts.renew,
		[]string{p.keys.owner(k.key.owner), p.keys.pool, p.keys.events}, renewArgs(v, k.key.owner, k.key.generation, k.principal)...)
	if err == nil && r.status != "RENEWED" {
		k.s.observer.answer("keep", p.name, string(FenceStale))
		k.lost(LostStale)
		return
	}
	if err == nil {
		k.s.observer.answer("keep", p.name, r.status)
	} else {
		k.s.observer.answer("keep", p.name, string(ServiceUnavailable))
	}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if len(k.exchanges) == 0 || ks.closed {
		return
	}
	if err != nil {
		k.timer.Reset(min(keepRetry, max(time.Until(k.validUntil), 0)))
		return
	}
	held := time.Duration(r.now-r.int(2)) * time.Millisecond
	k.validUntil = asked.Add(leaseOf(p, r).validFor)
	k.cutAt = asked.Add(v.settings.MaxHold - held)
	k.timer.Reset(k.nextLocked(v.ttl))
}

// overLocked says why the lease has certainly ended, "" when it may be alive.
func (k *keeper) overLocked() EndReason {
	now := time.Now()
	switch {
	case !now.Before(k.cutAt):
		return MaxHold
	case !now.Before(k.validUntil):
		return TTLExpired
	default:
		return ""
	}
}

// lost tells every exchange.
func (k *keeper) lost(reason EndReason) {
	ks := &k.s.keepers
	ks.mu.Lock()
	exchanges := k.endLocked()
	ks.mu.Unlock()
	if len(exchanges) == 0 {
		return
	}
	k.s.observer.lost(k.key.pool, string(reason))
	k.s.log.Warn("lease lost while an exchange was in flight", "pool", k.key.pool, "reason", string(reason),
		"generation", k.key.generation, "exchanges", len(exchanges))
	for hold := range exchanges {
		if hold.onLost != nil {
			hold.onLost(reason)
		}
	}
}

// closeAll ends all renewals without a word and waits for those under way.
func (ks *keepers) closeAll() {
	ks.mu.Lock()
	ks.closed = true
	for _, k := range ks.byLease {
		k.endLocked()
	}
	ks.mu.Unlock()
	ks.running.Wait()
}
