package config

import (
	"reflect"
	"slices"
)

// changedPaths lists the paths whose values differ, in the order of the schema. Lists count as one value.
func changedPaths(old, new *Config) []string {
	return changedSection(reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem(), "")
}

// needsRestart lists the changed paths that only a restart brings into effect, because what they configure is made once.
func needsRestart(old, new *Config) []string {
	fixed := restartPaths(reflect.TypeFor[Config](), "")
	return slices.DeleteFunc(changedPaths(old, new), func(path string) bool {
		return !slices.ContainsFunc(fixed, func(f string) bool { return f == path || encloses(f, path) })
	})
}

func restartPaths(section reflect.Type, path string) []string {
	var fixed []string
	for _, f := range fieldsOf(section) {
		switch at := join(path, f.key); {
		case f.restart:
			fixed = append(fixed, at)
		case f.kind == kindSection:
			fixed = append(fixed, restartPaths(f.typ, at)...)
		}
	}
	return fixed
}

func changedSection(old, new reflect.Value, path string) []string {
	var changed []string
	for _, f := range fieldsOf(old.Type()) {
		changed = append(changed, f.changed(old.Field(f.index), new.Field(f.index), join(path, f.key))...)
	}
	return changed
}

func (f field) changed(old, new reflect.Value, path string) []string {
	switch {
	case f.kind == kindSection:
		return changedSection(old, new, path)
	case f.kind == kindMap:
		return f.changedEntries(old, new, path)
	case reflect.DeepEqual(old.Interface(), new.Interface()):
		return nil
	}
	return []string{path}
}

func (f field) changedEntries(old, new reflect.Value, path string) []string {
	keys := slices.Concat(sortedKeys(old), sortedKeys(new))
	slices.Sort(keys)
	var changed []string
	for _, key := range slices.Compact(keys) {
		was, is := old.MapIndex(reflect.ValueOf(key)), new.MapIndex(reflect.ValueOf(key))
		if !was.IsValid() || !is.IsValid() {
			changed = append(changed, join(path, key))
			continue
		}
		changed = append(changed, f.element().changed(was, is, join(path, key))...)
	}
	return changed
}
