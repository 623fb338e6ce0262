package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Reasons of a lost lease that no lease ends with.
const (
	LostStale       EndReason = "STALE"       // the store does not know it any more: released, invalidated, or gone with the store's data
	LostMoved       EndReason = "MOVED"       // it has left the connection that the exchange is in flight on
	LostUnconfirmed EndReason = "UNCONFIRMED" // the store could not be asked until its end
)

// LostReasons are all reasons that Observer.Lost is told.
func LostReasons() []EndReason {
	return []EndReason{LostStale, LostMoved, LostUnconfirmed, TTLExpired, MaxHold}
}

// keepRetry is the pause after a renewal that the store did not answer.
const keepRetry = 250 * time.Millisecond

// keepers renew the leases of exchanges in flight, each lease once however many exchanges it has. Lock order: nothing is
// locked while keepers.mu is held, and no callback runs under it.
type keepers struct {
	mu      sync.Mutex
	byLease map[leaseKey]*keeper
	closed  bool
	running sync.WaitGroup // renewals under way
}

type leaseKey struct {
	pool       string
	owner      Owner
	generation int64
}

// keeper renews one lease. Its fields are guarded by keepers.mu.
type keeper struct {
	s          *Service
	key        leaseKey
	principal  string
	timer      *time.Timer
	token      int64              // the newest that is known
	exchanges  map[*Keep]struct{} // nil once it has ended
	validUntil time.Time          // by this process's monotonic clock, counted from before the store was asked
	cutAt      time.Time          // when it has been held for as long as it may
}

// Keep is one exchange's share in the renewal of its lease. The zero value and nil do nothing.
type Keep struct {
	keeper *keeper
	token  int64 // of the exchange
	onLost func(EndReason)
}

// Keep renews the lease of an exchange that is in flight, at a third of the time to live, until Stop, or until it has been
// held for maxHold. When the lease turns out to be lost for the exchange, onLost is called once, on another goroutine; it
// must not block. That is so when it has ended, and when it has left the connection that the fence named, even where it came
// back: what ends or moves it in this process is known at once, and in another within a second or so. Renewals that the store
// does not answer are repeated while the lease may still be valid.
//
// It does nothing for an unmanaged or unchecked request, or when renewInFlight is off.
func (s *Service) Keep(f Fence, onLost func(EndReason)) *Keep {
	v := s.view()
	if f.Unchecked || f.owner == "" || !v.settings.RenewInFlight {
		return nil
	}
	hold := &Keep{token: f.Token, onLost: onLost}
	ks, key := &s.keepers, leaseKey{f.Pool, f.owner, f.Generation}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.closed {
		return nil
	}
	k := ks.byLease[key]
	if k == nil {
		k = &keeper{s: s, key: key, principal: f.principal, token: f.Token, exchanges: map[*Keep]struct{}{},
			validUntil: f.asked.Add(f.validFor), cutAt: f.asked.Add(f.holdLeft)}
		if ks.byLease == nil {
			ks.byLease = map[leaseKey]*keeper{}
		}
		ks.byLease[key] = k
		k.timer = time.AfterFunc(k.nextLocked(v.ttl), k.fire)
	}
	hold.keeper = k
	if f.Token < k.token { // it moved between the fence and now
		go k.tell(map[*Keep]struct{}{hold: {}}, LostMoved)
		return hold
	}
	k.exchanges[hold] = struct{}{}
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
	held := time.Now().Before(k.cutAt)
	ks.mu.Unlock()
	if !held {
		k.lost(MaxHold)
		return
	}
	k.renew(context.Background())
}

// renew asks the store once and goes by its answer. Only the store says that a lease has expired: somebody else may have
// renewed it. Without an answer by its end nothing is known, and the lease counts as lost.
func (k *keeper) renew(ctx context.Context) (renewed bool) {
	v := k.s.view()
	p, refusal := v.pool(k.key.pool)
	if refusal != nil { // the pool was taken out of the configuration
		k.lost(LostStale)
		return false
	}
	asked := time.Now()
	r, err := v.store.write(ctx, p, v.store.scripts.renew, renewArgs(v, k.key.owner, k.key.generation, k.principal)...)
	switch {
	case err != nil:
		k.s.observer.answer("keep", p.name, string(ServiceUnavailable))
		k.unanswered()
		return false
	case r.status != "RENEWED":
		k.s.observer.answer("keep", p.name, string(FenceStale))
		k.lost(k.ended())
		return false
	}
	k.s.observer.answer("keep", p.name, r.status)
	l := leaseOf(p, r)
	k.s.keepers.learn(k.key, l.token)
	ks := &k.s.keepers
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if len(k.exchanges) == 0 || ks.closed {
		return true
	}
	k.validUntil = asked.Add(l.validFor)
	k.cutAt = asked.Add(v.settings.MaxHold - time.Duration(r.now-l.AcquiredAt.UnixMilli())*time.Millisecond)
	k.timer.Reset(k.nextLocked(v.ttl))
	return true
}

// unanswered tries again in a while, or gives the lease up at its end.
func (k *keeper) unanswered() {
	ks := &k.s.keepers
	ks.mu.Lock()
	left := time.Until(k.validUntil)
	if left > 0 && len(k.exchanges) > 0 && !ks.closed {
		k.timer.Reset(min(keepRetry, left))
	}
	ks.mu.Unlock()
	if left <= 0 {
		k.lost(LostUnconfirmed)
	}
}

// ended is why a lease that the store does not know any more has ended, as far as it can be told.
func (k *keeper) ended() EndReason {
	ks := &k.s.keepers
	ks.mu.Lock()
	defer ks.mu.Unlock()
	switch now := time.Now(); {
	case !now.Before(k.cutAt):
		return MaxHold
	case !now.Before(k.validUntil):
		return TTLExpired
	default:
		return LostStale
	}
}

// lost ends the keeper and tells every exchange.
func (k *keeper) lost(reason EndReason) {
	ks := &k.s.keepers
	ks.mu.Lock()
	exchanges := k.endLocked()
	ks.mu.Unlock()
	k.tell(exchanges, reason)
}

func (k *keeper) tell(exchanges map[*Keep]struct{}, reason EndReason) {
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

// learn takes in the newest fencing token of a lease: exchanges with an older one are on a connection that it has left.
func (ks *keepers) learn(key leaseKey, token int64) {
	ks.mu.Lock()
	k := ks.byLease[key]
	if k == nil || token <= k.token {
		ks.mu.Unlock()
		return
	}
	k.token = token
	left := map[*Keep]struct{}{}
	for hold := range k.exchanges {
		if hold.token < token {
			left[hold] = struct{}{}
			delete(k.exchanges, hold)
		}
	}
	if len(k.exchanges) == 0 {
		k.endLocked()
	}
	ks.mu.Unlock()
	go k.tell(left, LostMoved)
}

// ended takes in that a lease has ended.
func (ks *keepers) ended(key leaseKey) {
	ks.mu.Lock()
	k := ks.byLease[key]
	ks.mu.Unlock()
	if k != nil {
		go k.lost(LostStale)
	}
}

// ofPool returns the leases that are kept in a pool.
func (ks *keepers) ofPool(pool string) []*keeper {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	var found []*keeper
	for key, k := range ks.byLease {
		if key.pool == pool {
			found = append(found, k)
		}
	}
	return found
}

// maxLooked bounds the leases of one call.
const maxLooked = 500

// lookAtHeld asks where the leases of a pool's exchanges in flight are.
func (s *Service) lookAtHeld(ctx context.Context, v *view, p *pool) {
	for some := range slices.Chunk(s.keepers.ofPool(p.name), maxLooked) {
		var args []any
		for _, k := range some {
			args = append(args, string(k.key.owner), k.key.generation)
		}
		r, err := v.store.read(ctx, p, v.store.scripts.held, args...)
		if err != nil {
			return // renewals find out
		}
		for i, k := range some {
			if token := r.int(i); token > 0 {
				s.keepers.learn(k.key, token)
			} else {
				k.lost(k.ended())
			}
		}
	}
}

// RenewHeld renews the leases of all exchanges in flight once, to their full time to live, and returns how many it could.
// Renewals go on as before.
func (s *Service) RenewHeld(ctx context.Context) (renewed int) {
	s.keepers.mu.Lock()
	kept := slices.Collect(maps.Values(s.keepers.byLease))
	s.keepers.mu.Unlock()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, k := range kept {
		all.Go(func() {
			if k.renew(ctx) {
				mu.Lock()
				renewed++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return renewed
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
