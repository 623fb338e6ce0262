package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// agreed are licences under which users may do what they may under Headgate's own.
var agreed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// known are licences of modules whose files name none that a program recognises.
var known = map[string]string{
	"github.com/cenkalti/backoff/v5": "MIT",
	"std":                            "BSD-3-Clause",
}

// licencesOf builds the binary and looks at the licence of each module in it.
func licencesOf(ctx context.Context, root, dir string) ([]row, error) {
	binary, err := filepath.Abs(filepath.Join(dir, "extproc"))
	if err != nil {
		return nil, err
	}
	if _, err := run(ctx, root, nil, "go", "build", "-o", binary, "./cmd/extproc"); err != nil {
		return nil, err
	}
	list, err := tool(ctx, "cyclonedx-gomod")
	if err != nil {
		return nil, err
	}
	bill := filepath.Join(dir, "bill.json")
	if _, err := run(ctx, root, nil, list, "bin", "-json", "-licenses", "-std", "-version", "v0", "-output", bill, binary); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(bill)
	if err != nil {
		return nil, err
	}
	return licences(text)
}

// licensed are the licences that are declared of a module, or found in its files.
type licensed []struct{ License struct{ ID, Name string } }

// licences reads a bill of materials: a line for each module whose licence is not agreed, and one that counts all.
func licences(bill []byte) ([]row, error) {
	var read struct {
		Components []struct {
			Name, Version string
			Licenses      licensed
			Evidence      struct{ Licenses licensed }
		}
	}
	if err := json.Unmarshal(bill, &read); err != nil {
		return nil, fmt.Errorf("read the bill of materials: %w", err)
	}
	if len(read.Components) == 0 {
		return nil, fmt.Errorf("the bill of materials has no components")
	}
	var rows []row
	counts := map[string]int{}
	for _, c := range read.Components {
		var ids []string
		for _, l := range append(c.Licenses, c.Evidence.Licenses...) {
			ids = append(ids, l.License.ID+l.License.Name)
		}
		if len(ids) == 0 && known[c.Name] != "" {
			ids = []string{known[c.Name]}
		}
		fault := len(ids) == 0
		for _, id := range ids {
			counts[id]++
			fault = fault || !slices.Contains(agreed, id)
		}
		if fault {
			rows = append(rows, row{"licence", c.Name + "@" + c.Version, fmt.Sprintf("%q, want one of %s", ids, strings.Join(agreed, ", ")), true})
		}
	}
	var all []string
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", id, counts[id]))
	}
	return append(rows, row{"licences", fmt.Sprintf("%d modules", len(read.Components)), strings.Join(all, ", "), len(rows) > 0}), nil
}
