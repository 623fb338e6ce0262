package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// redisLog brings what the Redis client has to say into our log, at debug level: what matters of it is reported by the
// leases themselves.
type redisLog struct{ log *slog.Logger }

// Printf implements the client's logger.
func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}

// useRedisLog must be called before the first client is made: the client's logger is one for the whole process.
func useRedisLog(log *slog.Logger) { redis.SetLogger(redisLog{log}) }
