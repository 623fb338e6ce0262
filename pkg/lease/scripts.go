package lease

import (
	"embed"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// scripts are the compiled-in Lua scripts; each is the common part and one file, but those that run for every request.
type scripts struct {
	check, acquire, renew, release, invalidate, transition, abandon, rest, free, sweep, list *script
}

// script is one Lua script with the name its calls are counted under.
type script struct {
	name string
	*redis.Script
}

func loadScripts() (*scripts, error) {
	common, err := luaFiles.ReadFile("lua/common.lua")
	if err != nil {
		return nil, fmt.Errorf("embedded script: %w", err)
	}
	load := func(name string) *script {
		body, readErr := luaFiles.ReadFile("lua/" + name + ".lua")
		if readErr != nil {
			err = fmt.Errorf("embedded script: %w", readErr)
			return nil
		}
		if name == "check" || name == "free" {
			return &script{name: name, Script: redis.NewScript(string(body))}
		}
		return &script{name: name, Script: redis.NewScript(string(common) + "\n" + string(body))}
	}
	s := &scripts{
		check: load("check"), acquire: load("acquire"), renew: load("renew"), release: load("release"),
		invalidate: load("invalidate"), transition: load("transition"), abandon: load("abandon"), rest: load("rest"),
		free: load("free"), sweep: load("sweep"), list: load("list"),
	}
	return s, err
}

// keys names the keys of one pool. All carry the pool as hash tag, so that a Cluster keeps them in one slot.
type keys struct{ base, pool, events string }

func newKeys(prefix, pool string) keys {
	base := prefix + ":{" + pool + "}:"
	return keys{base: base, pool: base + "pool", events: base + "events"}
}

func (k keys) owner(o Owner) string          { return k.base + "owner:" + string(o) }
func (k keys) ended(o Owner) string          { return k.base + "ended:" + string(o) }
func (k keys) attempt(attempt string) string { return k.base + "attempt:" + attempt }

// reply is a script's answer: a status, the store's clock and texts whose meaning depends on the status.
type reply struct {
	status string
	now    int64 // ms
	rest   []any
}

// parseReply reads what every script with the common part returns. An answer of another shape is an error of the store.
func parseReply(v any) (reply, error) {
	all, ok := v.([]any)
	if !ok || len(all) < 2 {
		return reply{}, fmt.Errorf("%w: a script answered %T of unexpected shape", errUnavailable, v)
	}
	status, ok := all[0].(string)
	r := reply{status: status, rest: all[2:]}
	now, err := strconv.ParseInt(text(all[1]), 10, 64)
	if !ok || err != nil {
		return reply{}, fmt.Errorf("%w: a script answered without status or time", errUnavailable)
	}
	r.now = now
	return r, nil
}

// int returns element i as a number, 0 when it is none.
func (r reply) int(i int) int64 {
	n, err := strconv.ParseInt(r.text(i), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (r reply) text(i int) string {
	if i >= len(r.rest) {
		return ""
	}
	return text(r.rest[i])
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
