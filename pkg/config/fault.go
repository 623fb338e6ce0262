package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	Path    string // of the key, empty when it concerns the file as a whole
	Line    int    // in the file, 0 when unknown or not from the file
	Env     string // the environment variable it came from, if any
	Message string
}

// String renders the fault as "where: path: message".
func (f Fault) String() string {
	var parts []string
	if f.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", f.Line))
	}
	if f.Env != "" {
		parts = append(parts, f.Env)
	}
	if f.Path != "" {
		parts = append(parts, f.Path)
	}
	return strings.Join(append(parts, f.Message), ": ")
}

// Error reports every fault of a configuration at once.
type Error struct {
	File   string // empty when there was none
	Faults []Fault
}

// Error lists the faults, one a line.
func (e *Error) Error() string {
	const most = 100
	var b strings.Builder
	b.WriteString("configuration")
	if e.File != "" {
		b.WriteString(" " + e.File)
	}
	noun := "faults"
	if len(e.Faults) == 1 {
		noun = "fault"
	}
	fmt.Fprintf(&b, ": %d %s", len(e.Faults), noun)
	for i, f := range e.Faults {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(e.Faults)-most)
			break
		}
		b.WriteString("\n  " + f.String())
	}
	return b.String()
}

// origin says where the value of a path came from; the zero value is the built-in default.
type origin struct {
	line int
	env  string
}

// report collects faults and knows where values came from.
type report struct {
	faults  []Fault
	notes   []string
	origins map[string]origin
}

func newReport() *report { return &report{origins: map[string]origin{}} }

func (r *report) addLine(line int, path, format string, args ...any) {
	r.faults = append(r.faults, Fault{Path: path, Line: line, Message: fmt.Sprintf(format, args...)})
}

func (r *report) addEnv(env, path, format string, args ...any) {
	r.faults = append(r.faults, Fault{Path: path, Env: env, Message: fmt.Sprintf(format, args...)})
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// add reports a fault found after loading; the origin of the path, or of what encloses it, is named.
func (r *report) add(path, format string, args ...any) {
	o := r.originOf(path)
	r.faults = append(r.faults, Fault{Path: path, Line: o.line, Env: o.env, Message: fmt.Sprintf(format, args...)})
}

// touched reports whether the path, something in it or something around it has a fault already.
func (r *report) touched(path string) bool {
	return path != "" && slices.ContainsFunc(r.faults, func(f Fault) bool {
		return f.Path == path || encloses(path, f.Path) || (f.Path != "" && encloses(f.Path, path))
	})
}

func (r *report) originOf(path string) origin {
	for ; path != ""; path = parent(path) {
		if o, ok := r.origins[path]; ok {
			return o
		}
	}
	return origin{}
}

// err returns the faults sorted by line, those of the environment last; nil when there are none.
func (r *report) err(file string) error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.Env, b.Env), cmp.Compare(a.Line, b.Line))
	})
	return &Error{File: file, Faults: r.faults}
}

func encloses(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// parent cuts the last element of a path. A quoted key may contain anything but an unescaped quote.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		for i := len(path) - 3; i >= 0; i-- {
			if strings.HasPrefix(path[i:], `["`) {
				return path[:i]
			}
		}
		return ""
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}
