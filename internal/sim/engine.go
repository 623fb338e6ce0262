package sim

import (
	"math"
	"time"
)

// EngineModel describes an inference engine with continuous batching, as vLLM and its relatives schedule it: iterations of
// at most Chunk tokens, which give every decoding sequence one token and spend the rest on prompts, first come first
// served (Yu et al., "Orca", OSDI 2022; Agrawal et al., "Sarathi-Serve", OSDI 2024). Keys and values of a sequence stay in
// memory until it ends; when they no longer fit, the last to come is preempted and computed anew (Kwon et al.,
// "PagedAttention", SOSP 2023).
type EngineModel struct {
	MaxSequences int           // vLLM's max_num_seqs
	Chunk        int           // tokens of an iteration: vLLM's max_num_batched_tokens
	Cache        int           // tokens whose keys and values fit into memory
	Base         time.Duration // an iteration with next to nothing in it: the weights are read once
	PerPrefill   time.Duration // a prompt token: limited by arithmetic
	PerSequence  time.Duration // a sequence that decodes: sampling, scheduling
	PerCached    float64       // nanoseconds to read a cached token's keys and values in an iteration
}

// DefaultEngine is about a model of 70 billion parameters on four A100: 140 GB of weights read at 6 TB/s are 25 ms; 140 GFLOP
// a prompt token at 1.3 PFLOP/s (half of the peak) are 0.1 ms; 0.16 MB of keys and values a token with grouped queries
// at 6.5 TB/s are 25 ns, and 65 GB left for them hold 400 000 tokens. Chunk and MaxSequences are defaults of vLLM (0.6).
func DefaultEngine() EngineModel {
	return EngineModel{
		MaxSequences: 256, Chunk: 1024, Cache: 400_000,
		Base: 25 * time.Millisecond, PerPrefill: 100 * time.Microsecond, PerSequence: 20 * time.Microsecond, PerCached: 25,
	}
}

// Idle is the time to the first token of a prompt that is alone.
func (m EngineModel) Idle(prompt int) time.Duration {
	chunks := (prompt + m.Chunk - 1) / m.Chunk
	return time.Duration(chunks)*m.Base + time.Duration(prompt)*m.PerPrefill
}

// Times is the model with everything k times as fast or large: a pool of k engines behind one queue.
func (m EngineModel) Times(k float64) EngineModel {
	scale := func(n int) int { return int(math.Round(k * float64(n))) }
	m.MaxSequences, m.Chunk, m.Cache = scale(m.MaxSequences), scale(m.Chunk), scale(m.Cache)
	m.PerPrefill = time.Duration(float64(m.PerPrefill) / k)
	m.PerSequence = time.Duration(float64(m.PerSequence) / k)
	m.PerCached /= k
	return m
}

// engine runs the model.
type engine struct {
	EngineModel
	waiting, running []*sequence
	cached           int
	inStep           bool
	end              time.Duration // of the iteration under way
	byExchange       map[*Exchange]*sequence
	preempted        int
}

type sequence struct {
	x        *Exchange
	todo     int // prompt tokens, or tokens to compute anew, that are left
	now      int // prompt tokens of this iteration
	decodes  bool
	produced int
	cached   int
	gone     bool
}

func newEngine(m EngineModel) *engine {
	return &engine{EngineModel: m, byExchange: make(map[*Exchange]*sequence)}
}

func (e *engine) advance(time.Duration) {}

func (e *engine) enter(x *Exchange, now time.Duration) {
	s := &sequence{x: x, todo: max(1, x.Size.Prompt)}
	e.byExchange[x] = s
	e.waiting = append(e.waiting, s)
	if !e.inStep {
		e.begin(now)
	}
}

func (e *engine) leave(x *Exchange) {
	if s := e.byExchange[x]; s != nil {
		s.gone = true
		delete(e.byExchange, x)
	}
}

func (e *engine) next() (time.Duration, bool) { return e.end, e.inStep }

// begin the next iteration, if there is anything to do.
func (e *engine) begin(now time.Duration) {
	e.drop()
	e.inStep = len(e.waiting)+len(e.running) > 0
	if !e.inStep {
		return
	}
	decoding := 0
	for _, s := range e.running {
		s.now, s.decodes = 0, s.todo == 0
		if s.decodes {
			decoding++
		}
	}
	decoding = e.preempt(decoding)
	prefill := e.fill(e.Chunk-decoding, decoding)
	took := e.Base + time.Duration(prefill)*e.PerPrefill + time.Duration(decoding)*e.PerSequence + time.Duration(float64(e.cached)*e.PerCached)
	e.end = now + took
}

// drop those whose clients have left.
func (e *engine) drop() {
	keep := func(q []*sequence) []*sequence {
		kept := q[:0]
		for _, s := range q {
			if s.gone {
				e.cached -= s.cached
				continue
			}
			kept = append(kept, s)
		}
		clear(q[len(kept):])
		return kept
	}
	e.waiting, e.running = keep(e.waiting), keep(e.running)
}

// preempt from the back while the next tokens do not fit.
func (e *engine) preempt(decoding int) int {
	for e.cached+decoding > e.Cache && len(e.running) > 1 {
		last := len(e.running) - 1
		s := e.running[last]
		e.running[last] = nil
		e.running = e.running[:last]
		if s.decodes {
			decoding--
		}
		e.cached -= s.cached
		s.cached, s.todo, s.now, s.decodes = 0, max(1, s.x.Size.Prompt)+s.produced, 0, false
		e.waiting = append([]*sequence{s}, e.waiting...)
		e.preempted++
	}
	return decoding
}

// fill the iteration with prompts: those begun, then those that wait, in order.
func (e *engine) fill(budget, decoding int) (prefill int) {
	take := func(s *sequence) {
		s.now = max(0, min(budget, s.todo))
		budget -= s.now
		prefill += s.now
	}
	for _, s := range e.running {
		if s.todo > 0 {
			take(s)
		}
	}
	started := 0
	for _, s := range e.waiting {
		full := e.cached+s.todo+decoding > e.Cache-e.Cache/100 && len(e.running) > 0
		if budget <= 0 || len(e.running) >= e.MaxSequences || full {
			break
		}
		started++
		e.running = append(e.running, s)
		s.cached = s.todo
		e.cached += s.cached
		take(s)
	}
	e.waiting = append(e.waiting[:0], e.waiting[started:]...)
	return prefill
}

// fire ends the iteration that is due.
func (e *engine) fire(r *Run, now time.Duration) {
	if !e.inStep || e.end > now {
		return
	}
	for _, s := range e.running {
		if s.gone {
			continue
		}
		s.todo -= s.now
		if s.decodes || (s.now > 0 && s.todo == 0) {
			e.token(r, s)
		}
	}
	e.begin(now)
}

func (e *engine) token(r *Run, s *sequence) {
	s.produced++
	s.cached++
	e.cached++
	if s.produced == 1 {
		r.firstToken(s.x)
	}
	if s.produced >= max(1, s.x.Size.Output) && !s.gone {
		s.gone = true
		delete(e.byExchange, s.x)
		r.finished(s.x)
	}
}
