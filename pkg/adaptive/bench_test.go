package adaptive

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
)

func benchSettings() Settings {
	s := DefaultSettings()
	s.Mode, s.VirtualLanes = Enforce, true
	return s
}

func mustNew(tb testing.TB, s Settings) *Controller {
	tb.Helper()
	c, err := New(s)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// laneNames are as long as the opaque names that the exchange hands in.
func laneNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("lane_%016x", i*0x9e3779b9)
	}
	return names
}

// BenchmarkAdmitRelease is one exchange that does not wait: admitted on its tenant's account, sampled, released.
func BenchmarkAdmitRelease(b *testing.B) {
	names := laneNames(64)
	b.Run("headers-only response", func(b *testing.B) {
		c := mustNew(b, benchSettings())
		var p Permit
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			c.Acquire(&p, Request{Lane: names[i%len(names)], Cost: 5, Forward: true})
			p.Done(OK)
		}
	})
	b.Run("every event", func(b *testing.B) {
		c := mustNew(b, benchSettings())
		var p Permit
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			c.Acquire(&p, Request{Lane: names[i%len(names)], Cost: 5})
			p.Forwarded()
			p.FirstToken()
			p.Done(OK)
		}
	})
}

func BenchmarkAdmitReleaseParallel(b *testing.B) {
	names := laneNames(64)
	c := mustNew(b, benchSettings())
	b.SetParallelism(8 / min(8, runtime.GOMAXPROCS(0)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		p := new(Permit)
		i := 0
		for pb.Next() {
			i++
			c.Acquire(p, Request{Lane: names[i%len(names)], Cost: 5, Forward: true})
			p.Done(OK)
		}
	})
}

// BenchmarkPickEnqueue takes the head that is due and queues another on its lane, all lanes backlogged.
func BenchmarkPickEnqueue(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			o := newOrder()
			ls := make([]lane, n)
			fs := make([]flow, n)
			v := new(priorityLevel)
			ps := make([]Permit, 2*n)
			for i := range ls {
				ls[i].weight = 1
				fs[i] = flow{lane: &ls[i], level: v}
				for j := range 2 {
					p := &ps[2*i+j]
					p.cost = 1 + (i*7+j*13)%30
					fs[i].enqueue(p)
				}
				o.push(&fs[i], float64(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				f := o.firstWithin(MaxCost)
				p := f.head
				f.dequeue(p)
				f.base += float64(p.cost)
				f.enqueue(p)
				o.fix(f, f.virtual(0))
			}
		})
	}
}
