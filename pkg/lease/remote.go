package lease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// remote runs scripts on a Redis or Valkey.
type remote struct{ client redis.UniversalClient }

func (r *remote) close() error { return r.client.Close() }

// run sends the scripts by their hashes, and their text where the server does not know them.
func (r *remote) run(ctx context.Context, calls []*call, replicas int, wait time.Duration) {
	if replicas > 0 {
		r.runConfirmed(ctx, calls, replicas, wait)
		return
	}
	if len(calls) == 1 {
		c, run := calls[0], calls[0].script.Run
		if c.whole {
			run = c.script.Eval
		}
		c.value, c.err = run(ctx, r.client, c.keys, c.args...).Result()
		c.sent = c.sent || mayHaveArrived(c.err)
		return
	}
	pipeline(ctx, r.client, calls, 0, 0)
}

// runConfirmed runs scripts and waits until so many replicas have all that this connection has written.
func (r *remote) runConfirmed(ctx context.Context, calls []*call, replicas int, wait time.Duration) {
	node, err := r.node(ctx, calls[0].keys[0])
	if err != nil {
		for _, c := range calls {
			c.err = err
		}
		return
	}
	pipeline(ctx, node, calls, replicas, wait)
	for _, c := range calls {
		if cluster, ok := r.client.(*redis.ClusterClient); ok && c.err != nil && strings.HasPrefix(c.err.Error(), "MOVED") {
			cluster.ReloadState(ctx) // one node is talked to past the redirections of the client
			return
		}
	}
}

// node is the client of the one server that owns the key.
func (r *remote) node(ctx context.Context, key string) (*redis.Client, error) {
	switch c := r.client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	default:
		return nil, fmt.Errorf("client %T cannot wait for replicas", c)
	}
}

// pipeline sends all calls at once, and again with their text those whose scripts the server does not know.
func pipeline(ctx context.Context, client redis.UniversalClient, calls []*call, replicas int, wait time.Duration) {
	send(ctx, client, calls, replicas, wait, func(c *call, p redis.Pipeliner) *redis.Cmd { return c.script.EvalSha(ctx, p, c.keys, c.args...) })
	var unknown []*call
	for _, c := range calls {
		if c.err != nil && strings.HasPrefix(c.err.Error(), "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 {
		send(ctx, client, unknown, replicas, wait, func(c *call, p redis.Pipeliner) *redis.Cmd { return c.script.Eval(ctx, p, c.keys, c.args...) })
	}
}

func send(ctx context.Context, client redis.UniversalClient, calls []*call, replicas int, wait time.Duration, add func(*call, redis.Pipeliner) *redis.Cmd) {
	pipe := client.Pipeline()
	commands := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		commands[i] = add(c, pipe)
	}
	var got *redis.Cmd
	if replicas > 0 {
		got = pipe.Do(ctx, "WAIT", replicas, wait.Milliseconds())
	}
	_, err := pipe.Exec(ctx)
	confirmed := false
	if got != nil {
		n, waitErr := got.Int64()
		confirmed = waitErr == nil && n >= int64(replicas)
	}
	for i, c := range calls {
		c.value, c.err = commands[i].Result()
		if c.err == nil && c.value == nil { // the pipeline ended before it
			c.err = errors.Join(err, errNoAnswer)
		}
		c.sent = c.sent || mayHaveArrived(c.err)
		c.confirmed = c.err == nil && confirmed
	}
}

var errNoAnswer = errors.New("the connection ended before the answer")

// mayHaveArrived is false for a call that found no connection.
func mayHaveArrived(err error) bool {
	if err == nil {
		return true
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return false
	default:
		return true
	}
}

// evictionPolicy reads what the server does when it is full.
func (r *remote) evictionPolicy(ctx context.Context) (string, error) {
	info, err := r.client.Info(ctx, "memory").Result()
	return infoField(info, "maxmemory_policy"), err
}
