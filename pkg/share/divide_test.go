package share

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/adaptive"
)

func lane(key int, demand float64) adaptive.LaneReport {
	return adaptive.LaneReport{Key: adaptive.LaneKey(key), Weight: 1, Demand: demand}
}

func member(id string, lanes ...adaptive.LaneReport) need { return need{id, &record{lanes: lanes}} }

func TestDivide(t *testing.T) {
	heavy := adaptive.LaneReport{Key: 1, Weight: 3, Demand: 1000}
	for _, tc := range []struct {
		name    string
		limit   float64
		members []need
		want    []int
	}{
		{"alone", 64, []need{member("a", lane(1, 5))}, []int{64}},
		{"nobody wants anything", 64, []need{member("a"), member("b")}, []int{32, 32}},
		{"what is not wanted is divided evenly", 64, []need{member("a", lane(1, 20)), member("b")}, []int{42, 22}},
		{"one without traffic gives all but its floor away", 64, []need{member("a", lane(1, 500)), member("b")}, []int{62, 2}},
		{"one lane everywhere", 64, []need{member("a", lane(1, 500)), member("b", lane(1, 500))}, []int{32, 32}},
		{
			"a lane that reaches one member gets as much as one that reaches all", 80,
			[]need{member("a", lane(1, 500), lane(2, 500)), member("b", lane(1, 500)), member("c", lane(1, 500)), member("d", lane(1, 500))},
			[]int{50, 10, 10, 10}, // 40 for lane 2, 10 for lane 1 in each
		},
		{"by weight", 80, []need{member("a", heavy), member("b", lane(2, 1000))}, []int{60, 20}},
		{"a small demand is met", 80, []need{member("a", lane(1, 10)), member("b", lane(2, 1000))}, []int{10, 70}},
		{"pressure on a member", 80, []need{{"a", &record{lanes: []adaptive.LaneReport{lane(1, 500)}, most: 10}}, member("b", lane(1, 500))}, []int{10, 70}},
	} {
		if got := divide(tc.limit, tc.members); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v of %v, want %v", tc.name, got, tc.limit, tc.want)
		}
	}
}

// Whatever the demands: no part is below the floor, the sum is the limit but for floors, it does not matter who divides, and no lane
// gets less than its fair share while another that has more than its own lies in the same member.
func TestDivideAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := float64(rapid.IntRange(1, 500).Draw(t, "limit"))
		n := rapid.IntRange(1, 8).Draw(t, "members")
		var members []need
		bounded := false
		for m := range n {
			r := &record{}
			for k := range 5 {
				if d := rapid.IntRange(0, 300).Draw(t, "demand"); d > 0 {
					r.lanes = append(r.lanes, adaptive.LaneReport{Key: adaptive.LaneKey(k), Weight: 1, Demand: float64(d)})
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "pressed") == 0 {
				r.most, bounded = rapid.IntRange(1, 50).Draw(t, "most"), true
			}
			members = append(members, need{string(rune('a' + m)), r})
		}
		parts := divide(limit, members)
		floor := floorOf(limit, n)
		var sum int
		for m, p := range parts {
			sum += p
			if p < floor {
				t.Errorf("part %d is %d, below the floor of %d (%v)", m, p, floor, parts)
			}
			if most := members[m].most; most > 0 && p > max(most, floor) {
				t.Errorf("part %d is %d, above the bound of %d", m, p, most)
			}
		}
		if most := max(int(limit), n*floor); sum > most {
			t.Errorf("the parts %v sum to %d, want at most %d", parts, sum, most)
		}
		if !bounded && sum < int(limit)-1 {
			t.Errorf("the parts %v sum to %d, want the limit of %v", parts, sum, limit)
		}
		order := rapid.Permutation(members).Draw(t, "order")
		again := divide(limit, order)
		for i, m := range order {
			at := slices.IndexFunc(members, func(o need) bool { return o.id == m.id })
			if math.Abs(float64(again[i]-parts[at])) > 1 {
				t.Errorf("member %s gets %d when it divides and %d when another does", m.id, again[i], parts[at])
			}
		}
	})
}
