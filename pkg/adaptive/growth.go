package adaptive

import "math"

// growth is a cubic function of time, as in TCP CUBIC (Ha, Rhee and Xu, 2008; RFC 9438): fast while far below where the limit
// was last lowered, slow near there, and faster again the longer nothing speaks against it.
type growth struct {
	ceiling float64 // the limit when it was last lowered
	part    float64 // of a step that the least growth has not yet made
	age     float64 // windows of growth before (negative) or after the ceiling is reached
}

// cubic is such that a limit which was lowered by a fifth is back after ten windows, and one that may grow is
// doubled after 17 and eightfold after 33.
const cubic = 0.0002

// stop growth at a limit that has been lowered from before.
func (g *growth) stop(before, limit int) {
	g.ceiling = float64(before)
	g.age = -math.Cbrt(max(0, 1-float64(limit)/g.ceiling) / cubic)
}

// next is the limit after a window of growth.
func (g *growth) next(s Settings, limit int, room float64) int {
	if g.ceiling == 0 || float64(limit) > 1.5*g.at(g.age+1) {
		g.stop(limit, limit)
	}
	g.age += room
	g.part += room * float64(s.IncreaseStep)
	least := max(0, int(g.part))
	g.part -= float64(least)
	return limit + min(max(least, int(g.at(g.age))-limit), s.MaxIncreasePerWindow)
}

func (g *growth) at(age float64) float64 { return g.ceiling * (1 + cubic*age*age*age) }

// back is the limit after a window in which latency is a little too high: at most a step less.
func (g *growth) back(s Settings, limit int, room float64) int {
	g.part += room * float64(s.IncreaseStep)
	steps := int(g.part)
	g.part -= float64(steps)
	if steps < 0 && g.age > 0 {
		g.stop(limit+steps, limit+steps)
	}
	return max(limit+min(steps, 0), scale(limit, s.DecreaseFactor))
}

// hurry makes growth from a limit fast, since there more concurrency pays well.
func (g *growth) hurry(limit int) {
	const age = 7
	g.ceiling, g.age = float64(limit)/(1+cubic*age*age*age), age
}
