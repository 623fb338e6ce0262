package adaptive

// Evidence is what a member of a group has seen in a window, as sums: those of several members add up.
type Evidence struct {
	Epoch     uint32  // of the limit that the samples are about (see Learner)
	Busy      float64 // cost-seconds of the limit that were in use, or lacking
	Capacity  float64 // cost-seconds of the limit
	Completed int
	Waiting   bool // someone waits

	Samples [populations]Samples
	Answers Answers   // lately, of all lanes
	Lanes   []Answers // of the lanes with refusals or failures
}

// Samples are latencies by class of cost.
type Samples struct {
	N       int
	Classes [costClasses]ClassSum
}

// ClassSum sums the samples of a class.
type ClassSum struct{ Latency, Cost float64 } // in nanoseconds and cost

// Answers count how the upstream answered, decaying. Lane is of one lane's only.
type Answers struct {
	Lane                 LaneKey
	All, Refused, Failed float64
}

// evidenceLocked is what the controller has seen since the last look.
func (c *Controller) evidenceLocked() Evidence {
	w := &c.window
	e := Evidence{
		Epoch: c.member.epoch, Busy: w.busy * 1e-9, Capacity: w.capacity * 1e-9, Completed: w.completed, Waiting: c.starvedLocked(),
	}
	for i := range e.Samples {
		e.Samples[i].N = w.fresh[i].n
		for k, sum := range c.curves[i].window {
			e.Samples[i].Classes[k] = ClassSum{sum.latency, sum.cost}
		}
	}
	if !c.troubled {
		return e
	}
	now := c.now / int64(c.settings.Window)
	c.lanes.each(func(l *lane) {
		a := &l.answers
		if a.since != w.shedAt {
			return
		}
		a.decay(now)
		e.Answers.All, e.Answers.Refused, e.Answers.Failed = e.Answers.All+a.all, e.Answers.Refused+a.refused, e.Answers.Failed+a.failed
		if a.refused+a.failed >= 0.01 {
			e.Lanes = append(e.Lanes, Answers{KeyOf(l.id), a.all, a.refused, a.failed})
		}
	})
	c.troubled = len(e.Lanes) > 0
	return e
}
