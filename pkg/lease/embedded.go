package lease

import (
	"context"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	embeddedGrace   = 10 * time.Second // keys outlive what they say by up to this
	embeddedTick    = 2 * time.Second  // how often times to live are counted down; well below the grace
	embeddedTimeout = time.Second      // of one call: there is no network, only a busy machine can delay it
)

// openEmbedded starts an in-process server and connects to it in memory; nothing listens on a port.
func openEmbedded(log observedLog) *store {
	server := miniredis.NewMiniRedis()
	client := redis.NewClient(&redis.Options{
		Addr:                     "embedded", // never resolved
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		ContextTimeoutEnabled:    true,
		ReadTimeout:              embeddedTimeout,
		WriteTimeout:             embeddedTimeout,
		PoolSize:                 16,
		MaxRetries:               -1,
	})
	log.log.Warn("leases live in this process: one replica only, nothing survives a restart")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		countDown(server, stop)
	}()
	return &store{
		kind: "embedded", client: client, timeout: embeddedTimeout, grace: embeddedGrace,
		log: log.log, observer: log.observer,
		stop: func() {
			close(stop)
			<-done
			server.Close()
		},
	}
}

// countDown lets times to live pass: the server does not on its own. A key made since the last tick loses up to one tick
// too much, which the grace covers.
func countDown(server *miniredis.Miniredis, stop <-chan struct{}) {
	ticker := time.NewTicker(embeddedTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			server.FastForward(now.Sub(last))
			last = now
		}
	}
}
