package lease

import (
	"testing"
	"time"
)

// FuzzRetryAfter expects of any Retry-After that an upstream sends: no panic, never a negative duration, of seconds at
// most a day, and the same answer for the same header with blanks around it.
func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"", "0", "1", "-1", "86401", "99999999999999999999", "1.5", "+5", " 7 ", "Wed, 21 Oct 2015 07:28:00 GMT", "Wednesday, 21-Oct-15 07:28:00 GMT", "\xff"} {
		f.Add(value, "Wed, 21 Oct 2015 07:27:00 GMT")
		f.Add(value, "")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		d, ok := ParseRetryAfter(value, date)
		if d < 0 || !ok && d != 0 {
			t.Errorf("Retry-After %q at %q is %v, %v: a duration is never negative, and none without a valid header", value, date, d, ok)
		}
		if ok && len(value) < 19 && value[0] >= '0' && value[0] <= '9' && d > 24*time.Hour {
			t.Errorf("Retry-After %q is %v, want at most a day", value, d)
		}
		if date == "" {
			return // the answer then depends on the clock
		}
		if again, same := ParseRetryAfter(" "+value+"\t", date); again != d && ok || same != ok {
			t.Errorf("Retry-After %q is %v, %v; with blanks around it %v, %v", value, d, ok, again, same)
		}
	})
}
