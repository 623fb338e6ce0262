package budget

import "time"

// A queue that is fair by turns is not fair to a key that seldom comes: once everything free was granted to a busy key at one
// moment, nothing comes back for as long as those requests take, and whoever comes meanwhile waits in vain. So a key that
// is refused while it holds less than its fair share is owed: of what becomes free, as much as it needed is kept for it, and
// others may take that only up to their own fair share. The fair share is the budget divided by the keys that hold, wait or
// are owed.
//
// Keeping bytes for requests that have not come yet costs throughput. It ends some time after the last such refusal, is never
// more than the key was seen to need at once, and does not happen where nobody was refused.

// A key is owed for at least leastKept after a refusal: clients that were refused come back within it (they are sent away for 2
// seconds or more, spread over as much again). Where requests hold their bytes for longer it is as long as the oldest live
// one has been holding them, since nothing to keep may come back before, and at most mostKept.
const (
	leastKept = 10 * time.Second
	mostKept  = time.Minute
)

// account is what one key holds, waits for and is owed. It exists while any of them is not zero.
type account struct {
	key     string
	live    int   // holds and waiters
	bytes   int64 // of its holds
	waiting int64 // of its waiters for new reservations
	need    int64 // what it can have before others exceed their shares; 0 = it is owed nothing
	until   time.Time
	place   node[account] // in accounts.owed, while need is not 0
}

// kept is how much stays free for the key.
func (a *account) kept() int64 { return max(0, a.need-a.bytes) }

// accounts are those of all keys, guarded by their controller's lock.
type accounts struct {
	byKey map[string]*account
	kept  int64 // of all accounts
	owed  list[account]
	timer *time.Timer // for the first end of what is owed; nil while nobody is
	next  time.Time   // when it fires
	spare *account
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
	if a.live == 0 && a.need == 0 {
		delete(all.byKey, a.key)
		all.spare = a
	}
}

// hold changes what the key holds.
func (all *accounts) hold(a *account, bytes int64) {
	all.kept -= a.kept()
	a.bytes += bytes
	all.kept += a.kept()
}

// owe sets what the key is owed.
func (all *accounts) owe(a *account, need int64) {
	if a.need != 0 {
		all.owed.remove(&a.place)
	}
	all.kept -= a.kept()
	a.need = need
	all.kept += a.kept()
	if need != 0 {
		all.owed.pushBack(&a.place)
	}
}

// shareLocked is the fair share of each key.
func (c *Controller) shareLocked() int64 {
	return c.budget.Bytes / int64(max(1, len(c.accounts.byKey)))
}

// barredLocked reports whether bytes more would take the key above its fair share and into what is kept for others. A key that
// holds nothing never is: its first body may be larger than a share.
func (c *Controller) barredLocked(a *account, bytes int64) bool {
	return c.accounts.kept > 0 && a.bytes > 0 && a.bytes+bytes > c.shareLocked() &&
		!c.roomLocked(bytes+c.accounts.kept-a.kept())
}

// isKeptLocked reports whether bytes more for the key are free because they were kept for it, and none of its
// requests waits.
func (c *Controller) isKeptLocked(a *account, bytes int64) bool {
	return c.queue.lanes[a.key] == nil && bytes <= a.kept() && c.roomLocked(bytes)
}

// oweLocked notes that a request of so many bytes, which still counts as waiting, is refused for lack of them.
func (c *Controller) oweLocked(a *account, bytes int64) {
	share := c.shareLocked()
	need := max(a.need+bytes, a.bytes+a.waiting)
	if need > share {
		need = a.bytes + bytes
	}
	if len(c.accounts.byKey) == 1 || need == 0 || need > share || c.roomLocked(bytes) {
		return
	}
	c.accounts.owe(a, max(a.need, need))
	a.until = time.Now().Add(c.keptForLocked())
	c.endOwedAtLocked(a.until)
}

// keptForLocked is how long a key is owed that is refused now.
func (c *Controller) keptForLocked() time.Duration {
	longest := time.Duration(0)
	if oldest := c.live.first; oldest != nil {
		longest = time.Since(oldest.of.since)
	}
	return min(max(longest, leastKept), mostKept)
}

// endOwedAtLocked sees to it that what is owed until then ends then.
func (c *Controller) endOwedAtLocked(then time.Time) {
	all := &c.accounts
	switch {
	case all.timer == nil:
		all.timer = time.AfterFunc(time.Until(then), c.endOwed)
	case then.Before(all.next):
		all.timer.Reset(time.Until(then))
	default:
		return
	}
	all.next = then
}

// endOwed ends what has been owed for long enough, and lets others have it.
func (c *Controller) endOwed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, now := &c.accounts, time.Now()
	all.timer = nil
	for place := all.owed.first; place != nil; {
		a := place.of
		place = place.next
		if a.until.After(now) {
			c.endOwedAtLocked(a.until)
			continue
		}
		all.owe(a, 0)
		all.forget(a)
	}
	c.dispatchLocked()
}
