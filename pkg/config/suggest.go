package config

import (
	"fmt"
	"strings"
)

// suggest returns "; did you mean X?" for the known name nearest to what was written, or nothing when none is near.
func suggest(written string, known []string) string {
	best, distance := "", 3
	for _, name := range known {
		if d := editDistance(strings.ToLower(written), strings.ToLower(name)); d < distance && d*3 <= len(name) {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// editDistance is the Levenshtein distance in bytes; differences in length beyond what is ever suggested are cut short.
func editDistance(a, b string) int {
	if diff := len(a) - len(b); diff > 3 || diff < -3 {
		return max(diff, -diff)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}
