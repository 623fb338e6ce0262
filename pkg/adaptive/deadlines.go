package adaptive

import "math/bits"

// deadlines keeps waiters by when they must be told no: a wheel of slots, each a sixteenth of the longest wait wide and
// each an unordered list. Entering and leaving touch one list; only expiry looks at a slot's members. The times themselves
// are exact, the slots only narrow down where to look.
//
// Everything due at base has been expired. A timer set to next fires within one longest wait, so that base lags by one
// wait, new deadlines reach one further, and half the wheel is left for a timer that is late.
type deadlines struct {
	width int64
	base  int64
	used  uint64
	slots [wheelSlots]*Permit
}

const (
	wheelSlots = 64
	wheelSpan  = 16 // slots that the longest wait covers
)

func (d *deadlines) slot(t int64) int { return int(t / d.width % wheelSlots) }

// reset empties the wheel for waits of at most longest.
func (d *deadlines) reset(longest, now int64) {
	*d = deadlines{width: longest/wheelSpan + 1, base: now}
}

func (d *deadlines) add(p *Permit, now int64) {
	if d.used == 0 {
		d.base = now
	}
	i := d.slot(p.deadline)
	p.afterDeadline = d.slots[i]
	if p.afterDeadline != nil {
		p.afterDeadline.beforeDeadline = p
	}
	d.slots[i] = p
	d.used |= 1 << i
}

func (d *deadlines) remove(p *Permit) {
	if p.afterDeadline != nil {
		p.afterDeadline.beforeDeadline = p.beforeDeadline
	}
	if p.beforeDeadline != nil {
		p.beforeDeadline.afterDeadline = p.afterDeadline
	} else {
		i := d.slot(p.deadline)
		d.slots[i] = p.afterDeadline
		if d.slots[i] == nil {
			d.used &^= 1 << i
		}
	}
	p.afterDeadline, p.beforeDeadline = nil, nil
}

// expired is some waiter whose time has come, nil when there is none left.
func (d *deadlines) expired(now int64) *Permit {
	first := d.base / d.width
	last := min(now/d.width, first+wheelSlots-1)
	for t := first; t <= last && d.used != 0; t++ {
		for p := d.slots[t%wheelSlots]; p != nil; p = p.afterDeadline {
			if p.deadline <= now {
				return p
			}
		}
	}
	d.base = max(d.base, now)
	return nil
}

// next is the earliest deadline of all; only to be asked when someone waits.
func (d *deadlines) next() int64 {
	start := d.slot(d.base)
	i := (bits.TrailingZeros64(bits.RotateLeft64(d.used, -start)) + start) % wheelSlots
	earliest := d.slots[i].deadline
	for p := d.slots[i].afterDeadline; p != nil; p = p.afterDeadline {
		earliest = min(earliest, p.deadline)
	}
	return earliest
}
