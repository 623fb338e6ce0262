package envoyconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// dump is what a running Envoy says of its configuration (GET /config_dump of its admin interface), as far as it is read here.
// It is read as plain JSON: a dump holds types of every extension there is.
type dump struct {
	listeners, clusters, routes []object
}

// object is a message of a dump. Fields at their default are absent.
type object map[string]any

// readDump reads a dump.
func readDump(text []byte) (dump, error) {
	var all struct{ Configs []object }
	if err := json.Unmarshal(text, &all); err != nil {
		return dump{}, fmt.Errorf("read Envoy's config_dump: %w", err)
	}
	var d dump
	for _, c := range all.Configs {
		for _, l := range append(c.list("static_listeners"), c.list("dynamic_listeners")...) {
			if active := l.get("active_state", "listener"); active != nil {
				d.listeners = append(d.listeners, active)
			} else if static := l.get("listener"); static != nil {
				d.listeners = append(d.listeners, static)
			}
		}
		for _, l := range append(c.list("static_clusters"), c.list("dynamic_active_clusters")...) {
			if cluster := l.get("cluster"); cluster != nil {
				d.clusters = append(d.clusters, cluster)
			}
		}
		for _, l := range append(c.list("static_route_configs"), c.list("dynamic_route_configs")...) {
			if routes := l.get("route_config"); routes != nil {
				d.routes = append(d.routes, routes)
			}
		}
	}
	if len(d.listeners) == 0 {
		return d, errors.New("read Envoy's config_dump: it has no listeners; is it the answer of /config_dump?")
	}
	return d, nil
}

// get returns the message at a path, nil when there is none. All of its methods work on nil.
func (o object) get(path ...string) object {
	for _, key := range path {
		inner, ok := o[key].(map[string]any)
		if !ok {
			return nil
		}
		o = inner
	}
	return o
}

// list returns the messages in a repeated field.
func (o object) list(key string) []object {
	items, _ := o[key].([]any)
	var all []object
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// texts returns the strings in a repeated field.
func (o object) texts(key string) []string {
	items, _ := o[key].([]any)
	var all []string
	for _, i := range items {
		if s, ok := i.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// text returns a string or an enumeration, otherwise when it is absent.
func (o object) text(key, otherwise string) string {
	if s, ok := o[key].(string); ok {
		return s
	}
	return otherwise
}

// number returns a number, which 64-bit fields write as a string.
func (o object) number(key string, otherwise int64) int64 {
	switch v := o[key].(type) {
	case float64:
		return int64(v)
	case string:
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return otherwise
}

// duration returns a duration.
func (o object) duration(key string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(o.text(key, "")); err == nil {
		return d
	}
	return otherwise
}

func (o object) bool(key string) bool {
	b, _ := o[key].(bool)
	return b
}

// is reports whether a typed configuration has that type.
func (o object) is(name string) bool { return strings.HasSuffix(o.text("@type", ""), "."+name) }

// connectionManager is an HTTP connection manager and the listener it belongs to.
type connectionManager struct {
	listener, manager object
	filters           []object // of HTTP
	routes            []object // routes of all its virtual hosts
}

// connectionManagers finds those of all listeners.
func (d dump) connectionManagers() []connectionManager {
	var all []connectionManager
	for _, l := range d.listeners {
		chains := l.list("filter_chains")
		if c := l.get("default_filter_chain"); c != nil {
			chains = append(chains, c)
		}
		for _, c := range chains {
			for _, f := range c.list("filters") {
				m := f.get("typed_config")
				if m.is("HttpConnectionManager") {
					all = append(all, connectionManager{l, m, m.list("http_filters"), d.routesOf(m)})
				}
			}
		}
	}
	return all
}

// routesOf returns the routes of a connection manager.
func (d dump) routesOf(m object) []object {
	table := m.get("route_config")
	for _, r := range d.routes {
		if name := m.get("rds").text("route_config_name", ""); table == nil && name != "" && r.text("name", "") == name {
			table = r
		}
	}
	var all []object
	for _, host := range table.list("virtual_hosts") {
		all = append(all, host.list("routes")...)
	}
	return all
}

// cluster returns a cluster by its name.
func (d dump) cluster(name string) object {
	for _, c := range d.clusters {
		if c.text("name", "") == name {
			return c
		}
	}
	return nil
}
