package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/test/bench/load"
)

// plan is a setting and what is sent in it.
type plan struct {
	setting
	shapes []load.Shape
}

// plans are the settings through Envoy that the command line asks for.
func (o options) plans() ([]plan, error) {
	if !slices.Contains(strings.Split(o.modes, ","), "envoy") {
		return nil, nil
	}
	every := o.selected(append(load.Shapes(), load.Long()...))
	usual := slices.DeleteFunc(slices.Clone(every), func(s load.Shape) bool { // those whose figures the others do not tell
		return o.shapes == "" && (s.Name == "POST 1 KiB" || s.Name == "POST 16 MiB")
	})
	switch {
	case o.settings != "":
		return parsePlans(o.settings, every)
	case o.full:
		var all []string
		for _, socket := range []string{"tcp", "unix"} {
			for _, protocol := range []string{"h1", "h2"} {
				for _, connections := range []int{1, 8, 64} {
					all = append(all, fmt.Sprintf("%s/%s/%d", protocol, socket, connections))
				}
			}
		}
		return parsePlans(strings.Join(all, ","), every)
	}
	all := []plan{{eight, usual}}
	only := o.selected([]load.Shape{small()})
	for _, s := range []setting{sixtyFour, {"envoy", "h2", "tcp", 8}, {"envoy", "h1", "unix", 8}} {
		if len(only) > 0 {
			all = append(all, plan{s, only})
		}
	}
	return all, nil
}

// parsePlans reads PROTOCOL/SOCKET/CONNECTIONS, separated by commas.
func parsePlans(text string, shapes []load.Shape) ([]plan, error) {
	var all []plan
	for item := range strings.SplitSeq(text, ",") {
		fields := strings.Split(item, "/")
		bad := fmt.Errorf("setting %q, want PROTOCOL/SOCKET/CONNECTIONS with h1 or h2, tcp or unix, such as h1/tcp/8", item)
		if len(fields) != 3 {
			return nil, bad
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil || n < 1 || !slices.Contains([]string{"h1", "h2"}, fields[0]) || !slices.Contains([]string{"tcp", "unix"}, fields[1]) {
			return nil, bad
		}
		all = append(all, plan{setting{"envoy", fields[0], fields[1], n}, shapes})
	}
	return all, nil
}
