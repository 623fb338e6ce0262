package lease

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rates limit what one principal may do. There is one for each principal that came, and those are configured.
type rates struct {
	mu          sync.Mutex
	perSecond   int
	byPrincipal map[string]*rate.Limiter
}

// wait is how long a principal must wait before the next one, 0 when it may go on now. Waiting uses nothing up.
func (r *rates) wait(principal string, perSecond int) time.Duration {
	if perSecond <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byPrincipal == nil || r.perSecond != perSecond {
		r.perSecond, r.byPrincipal = perSecond, map[string]*rate.Limiter{}
	}
	l := r.byPrincipal[principal]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(perSecond), 2*perSecond)
		r.byPrincipal[principal] = l
	}
	if l.Allow() {
		return 0
	}
	return time.Second / time.Duration(perSecond)
}
