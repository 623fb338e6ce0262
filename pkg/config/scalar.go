package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headgate/headgate/pkg/budget/size"
)

// parseScalar reads a single value in the notation of its kind and checks it against the field's rules. The error says
// what is wrong with the value and never contains it when the field is a secret.
func (f field) parseScalar(text string) (reflect.Value, error) {
	v := reflect.New(f.typ).Elem()
	switch f.kind {
	case kindString:
		if !utf8.ValidString(text) {
			return v, errors.New("must be UTF-8")
		}
		if strings.TrimSpace(text) != text {
			return v, errors.New("has blanks around it")
		}
		if len(f.enum) > 0 && !slices.Contains(f.enum, text) {
			return v, fmt.Errorf("must be one of %s, not %q", strings.Join(f.enum, ", "), clip(text))
		}
		v.SetString(text)
	case kindBool:
		b, err := parseBool(text)
		if err != nil {
			return v, err
		}
		v.SetBool(b)
	case kindInt:
		n, err := parseInt(text)
		if err != nil {
			return v, err
		}
		v.SetInt(n)
		return v, checkRange(n, f, parseInt)
	case kindFloat:
		x, err := parseFloat(text)
		if err != nil {
			return v, err
		}
		v.SetFloat(x)
		return v, checkRange(x, f, parseFloat)
	case kindDuration:
		d, err := parseDuration(text)
		if err != nil {
			return v, err
		}
		v.SetInt(int64(d))
		return v, checkRange(d, f, parseDuration)
	case kindSize:
		return f.parseSizeValue(v, text)
	}
	return v, nil
}

// parseSizeValue reads a size into a Size, or into the float64 of a budget override, which must be positive and may
// have a fraction.
func (f field) parseSizeValue(v reflect.Value, text string) (reflect.Value, error) {
	if v.Kind() != reflect.Float64 {
		n, err := size.Parse(text)
		if err != nil {
			return v, err
		}
		v.SetInt(int64(n))
		return v, checkRange(n, f, size.Parse)
	}
	var x float64
	n, err := size.Parse(text)
	if err == nil {
		x = float64(n)
	} else if y, ferr := parseFloat(text); ferr == nil && !strings.ContainsAny(text, "eE") {
		x = y
	} else {
		return v, err
	}
	if x <= 0 {
		return v, fmt.Errorf("must be positive, is %s", text)
	}
	v.SetFloat(x)
	return v, nil
}

func checkRange[T cmp.Ordered](v T, f field, parse func(string) (T, error)) error {
	if f.min != "" {
		if least, err := parse(f.min); err != nil || v < least {
			return errors.Join(err, fmt.Errorf("must be at least %s", f.min))
		}
	}
	if f.max != "" {
		if most, err := parse(f.max); err != nil || v > most {
			return errors.Join(err, fmt.Errorf("must be at most %s", f.max))
		}
	}
	return nil
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("must be true or false, not %q", clip(text))
}

// parseInt reads a plain decimal integer: no base, no leading zero, no underscore, no exponent.
func parseInt(text string) (int64, error) {
	digits := strings.TrimPrefix(text, "-")
	if !isDigits(digits) || (len(digits) > 1 && digits[0] == '0') {
		return 0, fmt.Errorf("must be a plain decimal integer, not %q", clip(text))
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("integer %s is too large", clip(text))
	}
	return n, nil
}

func parseFloat(text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "+-.0123456789eE") != "" {
		return 0, fmt.Errorf("must be a finite decimal number, not %q", clip(text))
	}
	return x, nil
}

// parseDuration reads a non-negative duration. Every number needs its unit; only 0 stands alone.
func parseDuration(text string) (time.Duration, error) {
	if text != "0" && isDigits(text) {
		return 0, fmt.Errorf("duration %s needs a unit: %[1]sms or %[1]ss", clip(text))
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("must be a duration such as 250ms, 2s or 1m30s, not %q", clip(text))
	}
	if d < 0 {
		return 0, fmt.Errorf("duration %s must not be negative", clip(text))
	}
	return d, nil
}

// parseMilliseconds reads the plain number of milliseconds that the reference system's variables hold.
func parseMilliseconds(text string) (time.Duration, error) {
	n, err := parseInt(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("must be a whole number of milliseconds, not %q", clip(text))
	}
	if n > int64(math.MaxInt64/time.Millisecond) {
		return 0, fmt.Errorf("%s milliseconds are too many", clip(text))
	}
	return time.Duration(n) * time.Millisecond, nil
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// clip keeps what an operator mistyped readable in a log line.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
