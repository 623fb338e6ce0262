package share

import (
	"cmp"
	"math"
	"slices"

	"github.com/headgate/headgate/pkg/adaptive"
)

// floorShare is the share of an equal part that is a member's floor.
const floorShare = 1.0 / 16

// floorOf is the least part of a limit that a member of n has.
func floorOf(limit float64, n int) int { return max(1, int(limit*floorShare/float64(max(1, n)))) }

// need is what a member's record says of its needs.
type need struct {
	id string
	*record
}

// demand of one lane in one member.
type demand struct {
	member int
	cost   float64
}

// divide a limit among members, given in any order: the result is by their order.
//
// When the lanes' demands together exceed the limit it is shared max-min fairly among the lanes, by weight, and each lane's share again
// max-min among the members it has demand in. When they do not, every demand is met, and the rest divided evenly.
func divide(limit float64, members []need) []int {
	parts := make([]float64, len(members))
	lanes, total := demands(members)
	if total > limit {
		shareLanes(parts, lanes, limit)
	} else {
		for i := range lanes {
			for _, d := range lanes[i].in {
				parts[d.member] += d.cost
			}
		}
		for m := range parts {
			parts[m] += (limit - total) / float64(len(members))
		}
	}
	return whole(parts, members, limit)
}

// laneDemand is a lane in all members.
type laneDemand struct {
	key    adaptive.LaneKey
	weight float64
	total  float64
	in     []demand
}

// demands collects the lanes of all members. The lanes that a record has only as a sum are one lane of that member.
func demands(members []need) (lanes []laneDemand, total float64) {
	byKey := make(map[adaptive.LaneKey]int)
	add := func(at int, weight float64, d demand) {
		l := &lanes[at]
		l.weight, l.total = max(l.weight, weight), l.total+d.cost
		l.in = append(l.in, d)
		total += d.cost
	}
	for m, n := range members {
		for _, l := range n.lanes {
			at, ok := byKey[l.Key]
			if !ok {
				at = len(lanes)
				byKey[l.Key] = at
				lanes = append(lanes, laneDemand{key: l.Key})
			}
			add(at, l.Weight, demand{m, l.Demand})
		}
		if n.rest.Demand > 0 {
			lanes = append(lanes, laneDemand{})
			add(len(lanes)-1, n.rest.Weight, demand{m, n.rest.Demand})
		}
	}
	return lanes, total
}

// shareLanes adds the lanes' shares of a limit to the parts of the members they are in.
func shareLanes(parts []float64, lanes []laneDemand, limit float64) {
	slices.SortFunc(lanes, func(a, b laneDemand) int {
		return cmp.Or(cmp.Compare(a.total*b.weight, b.total*a.weight), cmp.Compare(a.key, b.key))
	})
	var weight float64
	for i := range lanes {
		weight += lanes[i].weight
	}
	for _, l := range lanes {
		share := min(l.total, limit*l.weight/weight)
		limit, weight = limit-share, weight-l.weight
		slices.SortFunc(l.in, func(a, b demand) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.member, b.member)) })
		for i, d := range l.in {
			part := min(d.cost, share/float64(len(l.in)-i))
			parts[d.member] += part
			share -= part
		}
	}
}

// whole makes parts whole numbers whose sum is the limit, none below the floor and none above the bound of its member.
func whole(parts []float64, members []need, limit float64) []int {
	floor := float64(floorOf(limit, len(members)))
	var above, spare float64 // what the parts have above the floor, and what they have to give
	for m := range parts {
		most := math.Inf(1)
		if b := members[m].most; b > 0 {
			most = max(floor, float64(b))
		}
		switch {
		case parts[m] > most:
			spare += parts[m] - most
			parts[m] = most
		case parts[m] < floor:
			spare -= floor - parts[m]
			parts[m] = floor
		}
		if members[m].most == 0 {
			above += parts[m] - floor
		}
	}
	order := make([]int, len(parts))
	result := make([]int, len(parts))
	var sum int
	for m := range parts {
		if above > 0 && members[m].most == 0 {
			parts[m] = max(floor, parts[m]+spare*(parts[m]-floor)/above)
		}
		order[m], result[m] = m, int(parts[m])
		sum += result[m]
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := parts[a]-math.Floor(parts[a]), parts[b]-math.Floor(parts[b])
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(members[a].id, members[b].id))
	})
	for _, m := range order {
		if float64(sum)+1 > limit {
			break
		}
		if parts[m] > float64(result[m]) {
			result[m]++
			sum++
		}
	}
	return result
}
