package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// embedded runs the scripts in this process over maps in memory: what a Redis would do, without one.
type embedded struct {
	mu      sync.Mutex // a script holds it from beginning to end
	state   *lua.LState
	scripts map[*script]*lua.FunctionProto
	data    memory
	journal *journal // nil: nothing survives a restart
	closed  bool
}

// openEmbedded makes the in-process store.
func openEmbedded(s StoreSettings, sc *scripts, out observedLog) (*store, error) {
	e := &embedded{scripts: map[*script]*lua.FunctionProto{}, data: newMemory()}
	if s.EmbeddedPath != "" {
		var err error
		if e.journal, err = openJournal(s.EmbeddedPath, e.data.hashes); err != nil {
			return nil, fmt.Errorf("leases.store.embeddedPath: %w", err)
		}
	}
	e.state = newLua(&e.data)
	return newStore("embedded", e, sc, 0, out), nil
}

// newLua makes an interpreter with the libraries that the scripts use.
func newLua(data *memory) *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true, RegistrySize: 4 << 10, RegistryMaxSize: 256 << 10, RegistryGrowStep: 4 << 10})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	commands := l.NewTable()
	command := l.NewFunction(data.command)
	commands.RawSetString("call", command)
	commands.RawSetString("pcall", command) // no command fails but by a mistake in a script
	l.SetGlobal("redis", commands)
	return l
}

func (e *embedded) run(_ context.Context, calls []*call, _ int, _ time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range calls {
		if e.closed {
			c.err = errClosed
			continue
		}
		c.sent = true
		c.value, c.err = e.eval(c)
		changes := e.data.takeChanges()
		if err := e.journal.add(changes, e.data.hashes); err != nil && c.err == nil {
			c.err = err
		}
	}
}

func (e *embedded) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.state.Close()
	return e.journal.close()
}

var errClosed = errors.New("the embedded store is closed")

// eval runs one script.
func (e *embedded) eval(c *call) (any, error) {
	proto := e.scripts[c.script]
	if proto == nil {
		f, err := e.state.Load(strings.NewReader(c.script.source), c.script.name)
		if err != nil {
			return nil, fmt.Errorf("script %s: %w", c.script.name, err)
		}
		proto = f.Proto
		e.scripts[c.script] = proto
	}
	keys, args := e.state.CreateTable(len(c.keys), 0), e.state.CreateTable(len(c.args), 0)
	for _, k := range c.keys {
		keys.Append(lua.LString(k))
	}
	for _, a := range c.args {
		args.Append(lua.LString(argument(a)))
	}
	e.state.SetGlobal("KEYS", keys)
	e.state.SetGlobal("ARGV", args)
	defer e.state.SetTop(0)
	if err := e.state.CallByParam(lua.P{Fn: e.state.NewFunctionFromProto(proto), NRet: 1, Protect: true}); err != nil {
		return nil, fmt.Errorf("script %s: %w", c.script.name, err)
	}
	return fromLua(e.state.Get(-1)), nil
}

// argument is what Redis gets for an argument.
func argument(a any) string {
	if s, ok := a.(string); ok {
		return s
	}
	return fmt.Sprint(a)
}

// fromLua turns an answer into what a client of Redis gets.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case *lua.LTable:
		list := make([]any, 0, v.Len())
		for i := 1; i <= v.Len(); i++ {
			list = append(list, fromLua(v.RawGetInt(i)))
		}
		return list
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(v)
	default:
		return nil
	}
}
