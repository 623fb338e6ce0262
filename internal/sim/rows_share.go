package sim

import (
	"fmt"
	"slices"
	"time"
)

// traffic is how a fleet's requests spread over its members.
type traffic struct {
	name  string
	route func(n int) Route
}

func traffics() []traffic {
	return []traffic{
		{"even", Evenly},
		{"10:1", func(n int) Route { return Lopsided(n, 10, 0) }},
		{"moving", func(n int) Route { return Lopsided(n, 10, 30*time.Second) }},
	}
}

// Shared has replicas that share one limit do as well as one sidecar, whatever traffic reaches which of them.
func (b *Replicas) Shared(sizes ...int) (goals []Goal) {
	for _, scene := range b.scenes() {
		one := b.shared(scene, Headgate(Enforcing()))
		for _, n := range sizes {
			settings := Enforcing()
			settings.Replicas = n
			for _, t := range traffics() {
				got := b.shared(scene, SharingFleet(n, settings, t.route(n)))
				name := fmt.Sprintf("%d replicas share, %s, %s: ", n, scene.name, t.name)
				goals = append(goals,
					atLeast(name+"sum of limits over one's", got.limit/one.limit, 0.75, "one %.0f", one.limit),
					atMost(name+"sum of limits over one's", got.limit/one.limit, 1.25, "one %.0f", one.limit),
					atLeast(name+"goodput over one's", got.good/one.good, 0.95, "one %.2f", one.good),
					atLeast(name+"Jain over quiet tenants' share served", got.jain, 0.97, "one %.3f", one.jain),
					atLeast(name+"worst quiet tenant served", got.worst, 0.9, "one %.2f", one.worst))
			}
		}
	}
	return goals
}

// outcome is means over seeds; single seeds differ much before an engine.
type outcome struct{ limit, good, jain, worst float64 }

// shared judges quiet tenants by the share of their requests that is served: they ask for less than their share of the limit.
func (b *Replicas) shared(s scene, f Factory) (o outcome) {
	each := 1 / float64(len(b.Seeds))
	for _, seed := range b.Seeds {
		r := b.Run(s.setup(seed), f)
		served := make([]float64, 0, len(r.Tenants))
		for i := range r.Tenants[1:] {
			served = append(served, r.Served(i+1))
		}
		o.limit += each * r.meanLimit()
		o.good += each * s.good(r, replicasWarmup, r.setup.Length)
		o.jain += each * Jain(served)
		o.worst += each * slices.Min(served)
	}
	return o
}

// Disturbed has one of four replicas freeze for a minute, and the store be away for a minute.
func (b *Replicas) Disturbed() (goals []Goal) {
	for _, scene := range b.scenes() {
		nothing := func(*fleet, bool) {}
		freeze := func(f *fleet, on bool) { f.freeze(1, on) }
		noStore := func(f *fleet, on bool) { f.store.away(on) }
		var before, frozen, calm, lost, most float64
		for _, seed := range b.Seeds {
			r := b.disturbed(scene, seed, nothing)
			calm += scene.good(r, disturbedAt, disturbedEnd)
			r = b.disturbed(scene, seed, freeze)
			before += r.Mean(disturbedAt-time.Minute, disturbedAt)
			frozen += r.Mean(disturbedAt+5*time.Second, disturbedAt+15*time.Second)
			r = b.disturbed(scene, seed, noStore)
			lost += scene.good(r, disturbedAt, disturbedEnd)
			for at := disturbedAt; at < disturbedEnd; at += time.Second {
				most = max(most, r.limitAt(at)/r.limitAt(disturbedAt-time.Second))
			}
		}
		name := "4 replicas share, " + scene.name + ": "
		goals = append(goals,
			atLeast(name+"sum from 5 windows after one froze", frozen/before, 0.75, "over the minute before"),
			atLeast(name+"goodput without the store for 60 s", lost/calm, 0.85, "over an undisturbed run's"),
			atMost(name+"highest sum without the store", most, 1.3, "over the last with it"))
	}
	return goals
}

const disturbedAt, disturbedEnd = 4 * time.Minute, 5 * time.Minute

// disturbed is a run of four replicas with something on for a minute.
func (b *Replicas) disturbed(s scene, seed uint64, set func(f *fleet, on bool)) *Result {
	settings := Enforcing()
	settings.Replicas = 4
	setup := s.setup(seed)
	for _, on := range []bool{true, false} {
		at := disturbedEnd
		if on {
			at = disturbedAt
		}
		setup.Steps = append(setup.Steps, Step{At: at, Do: func(r *Run) { set(r.limiter.(*fleet), on) }})
	}
	return b.Run(setup, SharingFleet(4, settings, Evenly(4)))
}
