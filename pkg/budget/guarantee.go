package budget

import "time"

// A queue that is fair by turns is not fair to a key that seldom comes: once everything free was granted to a busy key at one
// moment, nothing comes back for as long as those requests take, and whoever comes meanwhile waits in vain. So a key that
// is refused while it holds less than its fair share gets a guarantee of what it lacked: others may take what is free of that
// only up to their own fair share. The fair share is the budget divided by the keys that hold, wait or have a guarantee.
//
// Bytes that stay free for requests that have not come yet cost throughput. A guarantee ends some time after the last such
// refusal, is never more than the key was seen to lack or a fair share, and does not exist where nobody was refused.
// (Schedulers of clusters call it a minimum share; here it is earned by a refusal, and nothing is preempted for it.)

// A guarantee holds for at least leastGuarantee after a refusal: clients that were refused come back within it (they are sent
// away for 2 seconds or more, spread over as much again). Where requests hold their bytes for longer it is as long as the
// oldest live one has been holding them, since nothing may come back before, and at most mostGuarantee.
const (
	leastGuarantee = 10 * time.Second
	mostGuarantee  = time.Minute
)

// account is what one key holds, waits for and can rely on. It exists while any of them is not zero.
type account struct {
	key       string
	live      int           // holds and waiters
	bytes     int64         // of its holds
	waiting   int64         // of its waiters for new reservations
	guarantee int64         // what it can have before others exceed their fair shares; 0 = none
	until     time.Time     // when the guarantee ends
	place     node[account] // in accounts.guaranteed, while there is one
}

// unclaimed is what the key does not hold of its guarantee.
func (a *account) unclaimed() int64 { return max(0, a.guarantee-a.bytes) }

// accounts are those of all keys, guarded by their controller's lock.
type accounts struct {
	byKey      map[string]*account
	unclaimed  int64         // of all accounts
	guaranteed list[account] // those with a guarantee
	timer      *time.Timer   // for the first end of one; nil while there is none
	next       time.Time     // when it fires
	spare      *account
}

// join returns a key's account, with one hold or waiter more.
func (all *accounts) join(key string) *account {
	a := all.byKey[key]
	if a == nil {
		if a = all.spare; a == nil {
			a = &account{}
		}
		all.spare = nil
		*a = account{key: key}
		a.place.of = a
		all.byKey[key] = a
	}
	a.live++
	return a
}

// leave ends a hold or waiter of the account.
func (all *accounts) leave(a *account) {
	a.live--
	all.forget(a)
}

func (all *accounts) forget(a *account) {
	if a.live == 0 && a.guarantee == 0 {
		delete(all.byKey, a.key)
		all.spare = a
	}
}

// hold changes what the key holds.
func (all *accounts) hold(a *account, bytes int64) {
	all.unclaimed -= a.unclaimed()
	a.bytes += bytes
	all.unclaimed += a.unclaimed()
}

// setGuarantee replaces the key's guarantee.
func (all *accounts) setGuarantee(a *account, bytes int64) {
	if a.guarantee != 0 {
		all.guaranteed.remove(&a.place)
	}
	all.unclaimed -= a.unclaimed()
	a.guarantee = bytes
	all.unclaimed += a.unclaimed()
	if bytes != 0 {
		all.guaranteed.pushBack(&a.place)
	}
}

// shareLocked is the fair share of each key.
func (c *Controller) shareLocked() int64 {
	return c.budget.Bytes / int64(max(1, len(c.accounts.byKey)))
}

// barredLocked reports whether bytes more would take the key above its fair share and into what others are guaranteed. A key
// that holds nothing never is: its first body may be larger than a share.
func (c *Controller) barredLocked(a *account, bytes int64) bool {
	return c.accounts.unclaimed > 0 && a.bytes > 0 && a.bytes+bytes > c.shareLocked() &&
		!c.roomLocked(bytes+c.accounts.unclaimed-a.unclaimed())
}

// isGuaranteedLocked reports whether bytes more for the key are free and within its guarantee, and none of its requests waits.
func (c *Controller) isGuaranteedLocked(a *account, bytes int64) bool {
	return c.queue.lanes[a.key] == nil && bytes <= a.unclaimed() && c.roomLocked(bytes)
}

// guaranteeLocked raises the guarantee of a key of which a request for so many bytes, which still counts as waiting, is refused
// for lack of them.
func (c *Controller) guaranteeLocked(a *account, bytes int64) {
	share := c.shareLocked()
	lacked := max(a.guarantee+bytes, a.bytes+a.waiting)
	if lacked > share {
		lacked = a.bytes + bytes
	}
	if len(c.accounts.byKey) == 1 || lacked == 0 || lacked > share || c.roomLocked(bytes) {
		return
	}
	c.accounts.setGuarantee(a, max(a.guarantee, lacked))
	a.until = time.Now().Add(c.guaranteeTimeLocked())
	c.endGuaranteesAtLocked(a.until)
}

// guaranteeTimeLocked is how long a guarantee holds that a refusal gives now.
func (c *Controller) guaranteeTimeLocked() time.Duration {
	longest := time.Duration(0)
	if oldest := c.live.first; oldest != nil {
		longest = time.Since(oldest.of.since)
	}
	return min(max(longest, leastGuarantee), mostGuarantee)
}

// endGuaranteesAtLocked makes sure that a guarantee that ends then does.
func (c *Controller) endGuaranteesAtLocked(then time.Time) {
	all := &c.accounts
	switch {
	case all.timer == nil:
		all.timer = time.AfterFunc(time.Until(then), c.endGuarantees)
	case then.Before(all.next):
		all.timer.Reset(time.Until(then))
	default:
		return
	}
	all.next = then
}

// endGuarantees ends the guarantees whose time is over, and serves those who were barred by them.
func (c *Controller) endGuarantees() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, now := &c.accounts, time.Now()
	all.timer = nil
	for place := all.guaranteed.first; place != nil; {
		a := place.of
		place = place.next
		if a.until.After(now) {
			c.endGuaranteesAtLocked(a.until)
			continue
		}
		all.setGuarantee(a, 0)
		all.forget(a)
	}
	c.dispatchLocked()
}
