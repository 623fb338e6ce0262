package budget

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	if err := s.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if s.Queue.MaxWait != 2*time.Second || s.Queue.MaxQueuedBytes != 4194304 {
		t.Errorf("the queue's defaults are %v and %d, want 2s and 4194304", s.Queue.MaxWait, s.Queue.MaxQueuedBytes)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	s.Queue.MaxWait = -time.Second
	s.Budget.Floor, s.Budget.Cap = 2, 1
	s.Budget.Fraction = math.NaN()
	s.ReleaseAt = "whenever"
	override := math.Inf(1)
	s.Budget.Override = &override
	err := s.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, key := range []string{
		"bytes.queue.maxWait", "bytes.budget.floor", "bytes.budget.fraction", "bytes.releaseAt", "bytes.budget.override",
	} {
		if !strings.Contains(err.Error(), key+": ") {
			t.Errorf("%s is not named in:\n%v", key, err)
		}
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 5 {
		t.Errorf("%d faults, want 5:\n%v", lines, err)
	}
}

func TestOverrideIsPositiveAndFinite(t *testing.T) {
	t.Parallel()
	for value, valid := range map[float64]bool{1: true, 1024.5: true, 4 << 30: true, 0: false, -1: false, math.Inf(-1): false} {
		s := DefaultSettings()
		s.Budget.Override = &value
		if err := s.Validate(); (err == nil) != valid {
			t.Errorf("override %v: %v, want valid %v", value, err, valid)
		}
	}
}

// The ranges in the tags, from which the configuration is documented, are the ranges that Validate enforces.
func TestValidateAgreesWithTheTags(t *testing.T) {
	t.Parallel()
	checked := 0
	forEachRange(reflect.TypeFor[Settings](), "bytes", nil, func(key string, path []int, tag, bound string, outside float64) {
		checked++
		for _, c := range []struct {
			by    float64
			valid bool
		}{{0, true}, {outside, false}} {
			s := DefaultSettings()
			s.Budget.Floor, s.Budget.Cap = 1, math.MaxInt64
			setNumber(t, reflect.ValueOf(&s).Elem().FieldByIndex(path), bound, c.by)
			err := s.Validate()
			if named := err != nil && strings.Contains(err.Error(), key+": "); named == c.valid {
				t.Errorf("%s at its %s %s%+v: %v, want valid %v", key, tag, bound, c.by, err, c.valid)
			}
		}
	})
	if checked < 25 {
		t.Errorf("%d ranges found, want at least 25", checked)
	}
}

// forEachRange visits every min and max of a settings struct, with the smallest step that leaves the range.
func forEachRange(typ reflect.Type, key string, path []int, visit func(key string, path []int, tag, bound string, outside float64)) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		at := append(append([]int{}, path...), i)
		name := key + "." + f.Tag.Get("yaml")
		if f.Type.Kind() == reflect.Struct {
			forEachRange(f.Type, name, at, visit)
			continue
		}
		step := 1.0
		if f.Type.Kind() == reflect.Float64 {
			step = 1e-9
		}
		if bound, ok := f.Tag.Lookup("min"); ok {
			visit(name, at, "min", bound, -step)
		}
		if bound, ok := f.Tag.Lookup("max"); ok {
			visit(name, at, "max", bound, step)
		}
	}
}

// setNumber sets v, or what v points to, to bound as a configuration would spell it, moved by the given amount.
func setNumber(t *testing.T, v reflect.Value, bound string, by float64) {
	t.Helper()
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if v.Kind() == reflect.Float64 {
		f, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			t.Fatalf("bound %q: %v", bound, err)
		}
		v.SetFloat(f + by)
		return
	}
	if d, err := time.ParseDuration(bound); err == nil {
		v.SetInt(int64(d) + int64(by))
		return
	}
	size, err := ParseSize(bound)
	if err != nil {
		t.Fatalf("bound %q: %v", bound, err)
	}
	v.SetInt(int64(size) + int64(by))
}
