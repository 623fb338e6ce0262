package lease

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// script is one Lua script with the parts it needs in front of it, under the name its calls are counted by.
type script struct {
	*redis.Script
	name, source string
}

// scripts are the compiled-in Lua scripts.
type scripts struct {
	check, held, free, list                                             *script
	acquire, renew, release, end, move, abandon, cooldown, sweep, probe *script
}

func loadScripts() (*scripts, error) {
	var err error
	load := func(parts ...string) *script {
		var source strings.Builder
		for _, part := range append([]string{"rule"}, parts...) {
			text, readErr := luaFiles.ReadFile("lua/" + part + ".lua")
			if readErr != nil {
				err = fmt.Errorf("embedded script: %w", readErr)
			}
			source.Write(text)
			source.WriteByte('\n')
		}
		return &script{redis.NewScript(source.String()), parts[len(parts)-1], source.String()}
	}
	s := &scripts{
		check: load("cooldowns", "check"), held: load("held"), free: load("cooldowns", "choose", "free"), list: load("cooldowns", "list"),
		acquire: load("change", "cooldowns", "choose", "acquire"), move: load("change", "cooldowns", "choose", "move"),
		renew: load("change", "renew"), release: load("change", "release"), end: load("change", "end"), abandon: load("change", "abandon"),
		cooldown: load("change", "cooldowns", "cooldown"), sweep: load("change", "cooldowns", "sweep"), probe: load("change", "probe"),
	}
	return s, err
}

// keys names the keys of a pool. All carry the pool as hash tag, so that a Cluster keeps them in one slot.
type keys struct{ base, pool, events string }

func newKeys(prefix, pool string) keys {
	base := prefix + ":{" + pool + "}:"
	return keys{base: base, pool: base + "leases", events: base + "events"}
}

func (k keys) both() []string { return []string{k.pool, k.events} }

// attempt adds the key of an attempt to acquire.
func (k keys) attempt(attempt string) []string {
	return []string{k.pool, k.events, k.base + "attempt:" + attempt}
}

// reply is a script's answer: a status, the store's clock and values whose meaning depends on the status.
type reply struct {
	status string
	now    int64 // ms
	rest   []any
}

// parseReply reads what every script returns. An answer of another shape is an error of the store.
func parseReply(v any) (reply, error) {
	all, ok := v.([]any)
	if !ok || len(all) < 2 {
		return reply{}, fmt.Errorf("%w: a script answered %T of unexpected shape", errUnavailable, v)
	}
	status, ok := all[0].(string)
	r := reply{status: status, rest: all[2:]}
	now, isNumber := all[1].(int64)
	if !ok || !isNumber {
		return reply{}, fmt.Errorf("%w: a script answered without status or time", errUnavailable)
	}
	r.now = now
	return r, nil
}

// granted says that the script did what it was asked for, or found the lease it was asked about.
func (r reply) granted() bool {
	switch r.status {
	case "NONE", "STALE", "CAPACITY", "ELIGIBILITY", "UNAVAILABLE", "ABANDONED":
		return false
	default:
		return true
	}
}

// int returns element i as a number, 0 when it is none.
func (r reply) int(i int) int64 {
	if i >= len(r.rest) {
		return 0
	}
	return numeric(r.rest[i])
}

func (r reply) text(i int) string {
	if i >= len(r.rest) {
		return ""
	}
	return text(r.rest[i])
}

func (r reply) list(i int) []any {
	if i >= len(r.rest) {
		return nil
	}
	l, _ := r.rest[i].([]any)
	return l
}

// until is the time from the store's clock to the moment in element i.
func (r reply) until(i int) time.Duration { return time.Duration(r.int(i)-r.now) * time.Millisecond }

// leaseOf reads the connection and the record that scripts answer with.
func leaseOf(p *pool, r reply) Lease {
	f, _ := parseRecord(r.text(1)) // the zero value has expired
	l := Lease{
		State: "ACTIVE", Outcome: r.status, Pool: p.name, Connection: r.text(0), Generation: f.generation, token: f.token,
		AcquiredAt: moment(f.acquired), RenewedAt: moment(f.renewed), ExpiresAt: moment(f.expires), model: f.model,
		owner: f.owner, principal: f.principal, validFor: time.Duration(f.expires-r.now) * time.Millisecond,
	}
	if r.status == "RELEASED" || r.status == "INVALIDATED" {
		l.State = r.status
	}
	return l
}

// record is a lease as it is stored; see lua/rule.lua.
type record struct {
	expires, renewed, acquired int64 // ms
	owner                      Owner
	generation, token          int64
	principal, model           string
}

func parseRecord(text string) (record, bool) {
	var f [8]string
	for i := range f {
		var more bool
		if f[i], text, more = strings.Cut(text, " "); !more {
			return record{}, false
		}
	}
	return record{
		expires: number(f[0]), renewed: number(f[1]), owner: Owner(f[2]), generation: number(f[3]), principal: f[4],
		token: number(f[5]), acquired: number(f[6]), model: text, // f[7] is the attempt
	}, true
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// numeric reads a number that a script answered as such, or as text.
func numeric(v any) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	return number(text(v))
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func moment(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
