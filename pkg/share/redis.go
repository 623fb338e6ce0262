package share

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/exchange.lua
var exchangeSource string

//go:embed lua/commit.lua
var commitSource string

// Redis is a store on a Redis or Valkey: one hash for each group.
type Redis struct {
	client           redis.UniversalClient
	prefix           string
	exchange, commit *redis.Script
}

// NewRedis uses a client, which stays the caller's. Keys begin with the prefix.
func NewRedis(client redis.UniversalClient, prefix string) *Redis {
	return &Redis{client: client, prefix: prefix, exchange: redis.NewScript(exchangeSource), commit: redis.NewScript(commitSource)}
}

// key of a group. The number is that of the layout: members of another do not meet.
func (r *Redis) key(group string) []string { return []string{r.prefix + ":{" + group + "}:share1"} }

var errReply = errors.New("the store answered something of unexpected shape")

// Exchange implements Store.
func (r *Redis) Exchange(ctx context.Context, group string, c Claim) (View, error) {
	answer, err := r.exchange.Run(ctx, r.client, r.key(group),
		c.Member, c.Record, c.Want, c.Floor, c.Alone, c.Window.Milliseconds(), c.Most, c.Limit, c.Replicas, c.Part).Slice()
	if err != nil {
		return View{}, err
	}
	return readView(answer)
}

func readView(answer []any) (View, error) {
	d := replyReader{}
	if len(answer) != 6 {
		return View{}, errReply
	}
	v := View{Now: d.int(answer[0]), Version: d.int(answer[1]), Age: d.ms(answer[2]), Granted: int(d.int(answer[3]))}
	if state := d.text(answer[4]); state != "" {
		v.State = []byte(state)
	}
	others, ok := answer[5].([]any)
	d.bad = d.bad || !ok
	for _, o := range others {
		f, ok := o.([]any)
		if !ok || len(f) != 4 {
			return View{}, errReply
		}
		v.Others = append(v.Others, Other{Member: d.text(f[0]), Age: d.ms(f[1]), Claim: int(d.int(f[2])), Record: []byte(d.text(f[3]))})
	}
	if d.bad {
		return View{}, errReply
	}
	return v, nil
}

// replyReader reads the values of a script's answer.
type replyReader struct{ bad bool }

func (d *replyReader) text(v any) string {
	s, ok := v.(string)
	d.bad = d.bad || !ok
	return s
}

func (d *replyReader) int(v any) int64 {
	n, err := strconv.ParseInt(d.text(v), 10, 64)
	d.bad = d.bad || err != nil
	return n
}

func (d *replyReader) ms(v any) time.Duration { return time.Duration(d.int(v)) * time.Millisecond }

// Commit implements Store.
func (r *Redis) Commit(ctx context.Context, group string, s Step) (bool, error) {
	taken, err := r.commit.Run(ctx, r.client, r.key(group), s.Version, s.At, s.Limit, s.State, s.Window.Milliseconds()).Int()
	return taken == 1, err
}

// Leave implements Store.
func (r *Redis) Leave(ctx context.Context, group, member string) error {
	if err := r.client.HDel(ctx, r.key(group)[0], "m:"+member).Err(); err != nil {
		return fmt.Errorf("leave the group %q: %w", group, err)
	}
	return nil
}
