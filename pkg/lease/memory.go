package lease

import (
	"strconv"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// memory holds the data of the embedded store, and is redis.call for its scripts: the commands they use, and no others.
type memory struct {
	hashes  map[string]*hash
	marks   map[string]time.Time // keys that only exist, and until when
	streams map[string]*stream
	changes map[string]map[string]*string // fields that the running script changed, by key; nil is gone
}

// hash is a Redis hash.
type hash struct {
	fields  map[string]string
	expires time.Time // zero: never
}

// stream is the tail of a Redis stream.
type stream struct {
	entries []entry
	last    int64 // ms of the last identifier
	count   int64 // of entries within that ms
}

type entry struct {
	id     string
	values []string
}

func newMemory() memory {
	return memory{hashes: map[string]*hash{}, marks: map[string]time.Time{}, streams: map[string]*stream{}, changes: map[string]map[string]*string{}}
}

// takeChanges returns what changed since it was called last.
func (m *memory) takeChanges() map[string]map[string]*string {
	if len(m.changes) == 0 {
		return nil
	}
	changes := m.changes
	m.changes = map[string]map[string]*string{}
	return changes
}

func (m *memory) note(key, field string, value *string) {
	if m.changes[key] == nil {
		m.changes[key] = map[string]*string{}
	}
	m.changes[key][field] = value
}

// hash returns the live hash of a key, nil without one.
func (m *memory) hash(key string) *hash {
	h := m.hashes[key]
	if h != nil && !h.expires.IsZero() && !h.expires.After(time.Now()) {
		delete(m.hashes, key)
		return nil
	}
	return h
}

// command is redis.call.
func (m *memory) command(l *lua.LState) int {
	key := l.OptString(2, "")
	switch name := l.CheckString(1); name {
	case "TIME":
		now := time.Now()
		l.Push(list(l, strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond()/1000)))
	case "HGET":
		l.Push(m.field(key, l.CheckString(3)))
	case "HMGET":
		values := l.CreateTable(l.GetTop()-2, 0)
		for i := 3; i <= l.GetTop(); i++ {
			values.RawSetInt(i-2, m.field(key, l.CheckString(i)))
		}
		l.Push(values)
	case "HGETALL":
		l.Push(m.all(l, key))
	case "HSCAN": // one page
		page := list(l, "0")
		page.Append(m.all(l, key))
		l.Push(page)
	case "HSET":
		for i := 3; i < l.GetTop(); i += 2 {
			m.set(key, l.CheckString(i), l.CheckString(i+1))
		}
		l.Push(lua.LNumber(1))
	case "HDEL":
		for i := 3; i <= l.GetTop(); i++ {
			m.unset(key, l.CheckString(i))
		}
		l.Push(lua.LNumber(0))
	case "PEXPIRE":
		if h := m.hash(key); h != nil {
			ms, _ := strconv.ParseInt(l.CheckString(3), 10, 64) // the scripts' own
			h.expires = time.Now().Add(time.Duration(ms) * time.Millisecond)
		}
		l.Push(lua.LNumber(1))
	case "PTTL":
		l.Push(lua.LNumber(m.ttl(key)))
	case "EXISTS":
		exists := lua.LNumber(0)
		if m.marks[key].After(time.Now()) {
			exists = 1
		}
		l.Push(exists)
	case "SET":
		m.mark(key, l.CheckString(5))
		l.Push(lua.LNumber(1))
	case "XADD":
		m.add(l, key)
		l.Push(lua.LNumber(1))
	case "XREVRANGE":
		n, _ := strconv.Atoi(l.CheckString(6)) // the caller's own
		l.Push(m.newest(l, key, n))
	default:
		l.RaiseError("the embedded store has no command %s", name)
	}
	return 1
}

func list(l *lua.LState, values ...string) *lua.LTable {
	t := l.CreateTable(len(values), 0)
	for _, v := range values {
		t.Append(lua.LString(v))
	}
	return t
}

// field is a field's value, false without one.
func (m *memory) field(key, field string) lua.LValue {
	if h := m.hash(key); h != nil {
		if value, ok := h.fields[field]; ok {
			return lua.LString(value)
		}
	}
	return lua.LFalse
}

// all is fields and values in turns.
func (m *memory) all(l *lua.LState, key string) *lua.LTable {
	values := l.NewTable()
	if h := m.hash(key); h != nil {
		for field, value := range h.fields {
			values.Append(lua.LString(field))
			values.Append(lua.LString(value))
		}
	}
	return values
}

func (m *memory) set(key, field, value string) {
	h := m.hash(key)
	if h == nil {
		h = &hash{fields: map[string]string{}}
		m.hashes[key] = h
	}
	h.fields[field] = value
	m.note(key, field, &value)
}

func (m *memory) unset(key, field string) {
	h := m.hash(key)
	if h == nil {
		return
	}
	if _, ok := h.fields[field]; ok {
		delete(h.fields, field)
		m.note(key, field, nil)
	}
}

func (m *memory) ttl(key string) int64 {
	switch h := m.hash(key); {
	case h == nil:
		return -2
	case h.expires.IsZero():
		return -1
	default:
		return time.Until(h.expires).Milliseconds()
	}
}

// mark is SET key 1 PX ms. Marks that are over go when a new one comes.
func (m *memory) mark(key, ms string) {
	now := time.Now()
	for k, until := range m.marks {
		if !until.After(now) {
			delete(m.marks, k)
		}
	}
	life, _ := strconv.ParseInt(ms, 10, 64) // the script's own
	m.marks[key] = now.Add(time.Duration(life) * time.Millisecond)
}

// add is XADD key MAXLEN ~ n * field value ...
func (m *memory) add(l *lua.LState, key string) {
	s := m.streams[key]
	if s == nil {
		s = &stream{}
		m.streams[key] = s
	}
	if now := time.Now().UnixMilli(); now > s.last {
		s.last, s.count = now, 0
	}
	one := entry{id: strconv.FormatInt(s.last, 10) + "-" + strconv.FormatInt(s.count, 10)}
	s.count++
	for i := 7; i <= l.GetTop(); i++ {
		one.values = append(one.values, l.CheckString(i))
	}
	s.entries = append(s.entries, one)
	most, _ := strconv.Atoi(l.CheckString(5)) // the settings' own
	if len(s.entries) > most+most/4 {         // as a Redis does with ~
		s.entries = append([]entry(nil), s.entries[len(s.entries)-most:]...)
	}
}

// newest is XREVRANGE key + - COUNT n.
func (m *memory) newest(l *lua.LState, key string, n int) *lua.LTable {
	found := l.NewTable()
	s := m.streams[key]
	if s == nil {
		return found
	}
	for i := len(s.entries) - 1; i >= 0 && found.Len() < n; i-- {
		one := list(l, s.entries[i].id)
		one.Append(list(l, s.entries[i].values...))
		found.Append(one)
	}
	return found
}
