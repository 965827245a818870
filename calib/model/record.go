package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// Recorder are operations of a device that can keep what they are asked for, to do it again at once: where there is a
// token a step, to ask one by one takes the host longer than the device takes to do it.
type Recorder interface {
	Ops
	// Record does what f asks for, and keeps it to be done again, with what the arrays hold then. f may neither
	// allocate, free, write nor read, and is called twice.
	Record(f func()) (Recording, error)
	// EmbedAt is Embed of the tokens in floats [rows], all of the vocabulary.
	EmbedAt(h, tokens Array, w Weight, scale float32)
	// Join returns a weight of the rows of several with the same K, one behind the other, of which they become
	// parts; or nil where it cannot.
	Join(parts ...Weight) (Weight, error)
	// AddNorm adds x, acts [rows, len(w)], to h, floats, and writes RMSNorm of the sum to y, acts. y may be x.
	AddNorm(y, h, x, w Array, rows int, eps float64)
	// TurnKeep is Rope of q and k by the angles of their rows, and Keep of k and v. k may be left as it is.
	TurnKeep(q, keys, values, k, v, cos, sin Array, half int, at Step, c CacheShape)
	// Recalls reports whether Recall of a row of each text over keys that are values as well, in one array, takes no part of the host.
	Recalls(c CacheShape) bool
	// Attends reports whether Attend is for such an attention.
	Attends(s AttentionShape) bool
	// Attend writes to out, acts [rows, Heads, Dim], what TurnKeep and Recall do of the heads of a step of one token a
	// text, after bias and norm. arrived, floats [rows, Heads], is zeros, which are left.
	Attend(out, keys, values Array, h StepHeads, at Step, c CacheShape, s AttentionShape, arrived Array)
	// Gates reports whether Gated is for so many rows and a weight.
	Gates(rows int, w Weight, act arch.Gating) bool
	// Gated writes GLU of the gates and what they are multiplied by, x [rows, K] times either half of the rows of w, which
	// were joined, to y, acts [rows, N/2].
	Gated(y, x Array, rows int, w Weight, act arch.Gating)
	// GLURows is GLU of both, acts [rows, 2·N], of which each row has gates and behind them what they are multiplied by, to y, acts [rows, N].
	GLURows(y, both Array, rows int, act arch.Gating)
	// Mixture prepares a mixture of experts for Mix. It returns nil where it cannot.
	Mixture(w MixtureWeights) (Mixture, error)
	// Mix adds to h what the experts make of x that the router chooses, and writes RMSNorm of the sum.
	Mix(m Mixture, s MixStep)
	// MarkNotFinite writes 1 to dst, floats [rows], for rows that NotFinite looks for, and 0 for others.
	MarkNotFinite(dst, x Array, rows, cols int)
	// Advance is the end of what is recorded: of a step, which it makes the beginning of the next one.
	Advance(e StepEnd)
}

// MixtureWeights are those of a mixture of experts, of each in order. Biases are floats, and nil where there are none.
type MixtureWeights struct {
	Router                     Weight // of logits, of whose scores the largest Top choose
	RouterBias                 Array
	Routing                    arch.Routing
	Correction                 Array    // floats [experts] of Routing, or nil
	Gates, Ups, Downs          []Weight // Gates are none where Ups are the gates as well
	GateBias, UpBias, DownBias []Array
	Act                        arch.Gating
	Top                        int
	Normalize                  bool // whether the weights of those that are chosen sum to 1, and not those of all
}

// Mixture is what a [Recorder] makes of them. It is closed before the weights are given back.
type Mixture interface {
	// Rows returns how many rows a step may have at most.
	Rows() int
	Close()
}

// MixStep is a mixture's part in a step.
type MixStep struct {
	Y, X       Array // acts [Rows, hidden]; they may be the same
	H          Array // floats [Rows, hidden]
	Rows       int
	Shared     Array // acts [Rows, hidden], what an expert of all tokens makes, and
	SharedGate Array // floats [Rows], of which the sigmoid is its weight; nil: 1, or none
	Norm       Array // floats [hidden]
	Eps        float64
}

// StepEnd is what a step ends with.
type StepEnd struct {
	Logits Array // floats [rows, vocabulary]
	Marks  Array // floats [rows], of MarkNotFinite: what [Recording.Read] returns, and behind it the most likely tokens
	Tokens Array // floats [rows]: takes the most likely token of each row, the first of equals
	Places Array // floats [rows, 2]: slots, and positions, of which each becomes the next one
	Angles []Angles
}

// Angles are cosines and sines of rows, floats [rows, half], which take those of their new positions, and the tables that
// have them, floats [positions, half]. Behind the last position it does not matter what they hold.
type Angles struct {
	Cos, Sin           Array
	CosTable, SinTable Array
}

// StepHeads are the queries, keys and values of a step, acts, from the first row's on.
type StepHeads struct {
	Q, K, V             Array
	QPitch, KVPitch     int   // elements from a row to the next
	Gated               bool  // whether behind each head of queries are the gates, of whose sigmoids and what it mixes the product is written
	QBias, KBias, VBias Array // floats; nil: none
	QNorm, KNorm        Array // floats [Dim]; nil: none
	QEps, KEps          float64
	Cos, Sin            Array // floats [rows, Half], the angles of each row
	Half                int
}

// Recording is what a [Recorder] keeps.
type Recording interface {
	// Replay queues it. At most [MaxQueued] may be queued that were not read.
	Replay()
	// Read waits for the first one queued that was not read, by Record or Replay, and fills dst, floats [2, rows], with
	// the marks and the most likely tokens that it ended with.
	Read(dst []float32) error
	// Close gives its memory back.
	Close()
}

// MaxQueued is how many replays of a recording may be on their way.
const MaxQueued = 4

// recordedStep takes texts further by a token each, so many at once.
type recordedStep struct {
	activations
	first   Array  // acts, what the layers of a mixer's first stage make
	both    Array  // gate, up, and where these are of one product what comes of them
	mixed   Array  // acts, what a mixer leaves where it takes these at once
	arrived Array  // floats [rows, heads]: zeros between operations
	sum     Array  // acts [rows, hidden], what is added to h next
	in      floats // what a step begins with: tokens [rows], and places
	tokens  Array
	places  places
	logits  Array // floats [rows, vocabulary]
	some    Array // of a part of a divided head: floats [rows, its own logits]
	marks   Array // floats [rows], of MarkNotFinite
	shared  Array // floats [rows], of the gate of an expert of all tokens
	again   Recording
}

// newStep returns a step of n texts that is not recorded yet.
func (c *Cache) newStep(rec Recorder, n int) *recordedStep {
	m, w := c.m, widthsOf(c.m.desc)
	r := &recordedStep{
		activations: activations{t: n, h: rec.Floats(n * m.desc.Hidden), n: rec.Acts(n * m.desc.Hidden)},
		first:       rec.Acts(n * max(m.firstWidth(), w.q+2*w.kv)), both: rec.Acts(3 * n * w.mlp), sum: rec.Acts(n * m.desc.Hidden),
		mixed: rec.Acts(n * w.q), arrived: rec.Floats(n * w.heads),
		places: c.newPlaces(), logits: rec.Floats(n * m.Vocab()), marks: rec.Floats(n), shared: rec.Floats(n),
	}
	elements := 3 * n
	for rope := range r.places.turns {
		elements += 2 * n * rope.half()
	}
	r.in.dev = rec.Floats(elements)
	r.tokens = r.in.dev.Slice(0, n)
	if c.tables == nil {
		c.tables = make(map[*rope]*rope)
		for _, r := range m.ropes {
			c.tables[r] = &rope{desc: r.desc}
			c.tables[r].grow(c.positions, rec)
		}
	}
	r.y = m.addedRoom(n)
	r.some = m.headRoom(n)
	m.mixerRoom(&r.activations, n)
	r.beside = m.newBeside(n)
	r.input = m.inputRoom(n)
	r.q, r.k, r.v = r.first.Slice(0, n*w.q), r.first.Slice(n*w.q, n*(w.q+w.kv)), r.first.Slice(n*(w.q+w.kv), n*(w.q+2*w.kv))
	r.gate, r.up = r.both.Slice(0, n*w.mlp), r.both.Slice(n*w.mlp, 2*n*w.mlp)
	return r
}

func (r *recordedStep) close(ops Ops) {
	if r.again != nil {
		r.again.Close()
	}
	ops.Free(r.arrays...)
	ops.Free(r.h, r.y, r.n, r.more, r.small, r.input, r.first, r.both, r.mixed, r.arrived, r.sum, r.in.dev, r.logits, r.some, r.marks, r.shared)
}

// begin tells the device at once what a step begins with.
func (r *recordedStep) begin(rec Recorder, tokens []int, runs []Run) Step {
	r.in.host = r.in.host[:0]
	for _, t := range tokens {
		r.in.host = append(r.in.host, float32(t))
	}
	add := func(f *floats) {
		f.dev = r.in.dev.Slice(len(r.in.host), len(r.in.host)+len(f.host))
		r.in.host = append(r.in.host, f.host...)
	}
	r.places.find(runs)
	add(&r.places.rows)
	for _, rope := range r.places.order {
		add(&r.places.turns[rope].cos)
		add(&r.places.turns[rope].sin)
	}
	rec.Write(r.in.dev, r.in.host)
	return Step{Runs: runs, Rows: r.places.rows.dev}
}

// joined is several linear layers that read the same, as one; w is nil where they are not.
type joined struct {
	w    Weight
	bias Array // or nil
}

// firstWidth is the most that the layers of a mixer's first stage make of a token.
func (m *Model) firstWidth() (most int) {
	for i := range m.desc.Blocks {
		n := 0
		if stages := m.desc.Blocks[i].Mixer.Stages(); len(stages) > 0 {
			for _, l := range stages[0] {
				n += l.N
			}
		}
		most = max(most, n)
	}
	return most
}

// recorded is implemented by mixers whose part of a step is asked for by operations of several parts.
type recorded interface {
	mixer
	// join joins layers that read the same.
	join(m *Model, rec Recorder) error
	// recordIn returns the weights that read the mixer's input in a step of so many rows.
	recordIn(rec Recorder, rows int) []Weight
	// record is recall of a step.
	record(m *Model, rec Recorder, r *recordedStep, x Array, k kept, at Step) Array
}

// usual reports whether all layers have a mixer and an MLP and add what these make as it is, behind a norm each, so that each addition
// takes the norm that comes next.
func (m *Model) usual() bool {
	return !slices.ContainsFunc(m.desc.Blocks, func(b arch.Block) bool {
		return len(b.Mixer.Stages()) == 0 || b.MLP == nil && b.MoE == nil || b.Told != nil || b.Scale != "" || b.AttnOut != nil || b.MLPOut != nil || b.AttnNorm.None() || b.MLPNorm.None()
	})
}

// join joins the layers that read the same.
func (m *Model) join(rec Recorder) error {
	for i := range m.layers {
		d := &m.layers[i]
		if t, ok := d.mixer.(recorded); ok {
			if err := t.join(m, rec); err != nil {
				return err
			}
		}
		every := d.mlp
		if d.moe != nil {
			every = d.moe.shared
			if err := m.mixtureOf(rec, d.moe); err != nil {
				return err
			}
		}
		if every != nil && !every.single {
			if err := m.joinTo(rec, &every.both, &every.gate, &every.up); err != nil {
				return err
			}
		}
	}
	return nil
}

// mixtureOf prepares a mixture whose routing devices have.
func (m *Model) mixtureOf(rec Recorder, d *moe) (err error) {
	if d.apart != nil || d.desc.Into != nil {
		return nil
	}
	w := MixtureWeights{Router: d.router.w, RouterBias: d.router.bias, Routing: d.desc.Routing, Act: d.experts[0].act, Top: d.desc.Top, Normalize: d.desc.Normalize}
	add := func(weights *[]Weight, biases *[]Array, l *linear) {
		*weights = append(*weights, l.w)
		if l.bias != nil {
			*biases = append(*biases, l.bias)
		}
	}
	if d.correction != nil {
		w.Correction = rec.Floats(len(d.correction))
		m.own.arrays = append(m.own.arrays, w.Correction)
		rec.Write(w.Correction, d.correction)
	}
	for e := range d.experts {
		x := &d.experts[e]
		if !x.single {
			add(&w.Gates, &w.GateBias, &x.gate)
		}
		add(&w.Ups, &w.UpBias, &x.up)
		add(&w.Downs, &w.DownBias, &x.down)
	}
	if d.mixture, err = rec.Mixture(w); d.mixture != nil {
		m.own.mixtures = append(m.own.mixtures, d.mixture)
	}
	return err
}

func (m *Model) joinTo(rec Recorder, to *joined, parts ...*linear) (err error) {
	var weights []Weight
	n, biased := 0, 0
	for _, l := range parts {
		weights = append(weights, l.w)
		n += width(l.w)
		if l.bias != nil {
			biased++
		}
	}
	if biased > 0 && biased < len(parts) {
		return nil
	}
	if to.w, err = rec.Join(weights...); err != nil || to.w == nil {
		return err
	}
	m.own.weights = append(m.own.weights, to.w)
	if biased == 0 {
		return nil
	}
	to.bias = rec.Floats(n)
	m.own.arrays = append(m.own.arrays, to.bias)
	at := 0
	for _, l := range parts {
		rec.Copy(to.bias.Slice(at, at+l.bias.Len()), l.bias)
		at += l.bias.Len()
	}
	return nil
}

// recorder returns the device as a recorder, if steps of so many rows can be recorded, else nil: the host takes no part in
// them, as it does where it chooses experts.
func (m *Model) recorder(rows int) (Recorder, error) {
	rec, ok := m.ops.(Recorder)
	if !ok {
		return nil, nil
	}
	if !m.joined { // before anything is recorded, as it moves weights
		m.joined = true
		if err := m.join(rec); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	for i := range m.layers {
		if a := m.desc.Blocks[i].Attn(); a != nil && a.Chunk > 0 { // of whose parts the host keeps account
			return nil, nil
		}
		if t, ok := m.layers[i].mixer.(*latent); ok && !rec.Recalls(t.cache(1, 1)) { // whose keys the host has multiplied by as many as there are
			return nil, nil
		}
		if d := &m.layers[i]; d.moe != nil && (d.moe.mixture == nil || rows > d.moe.mixture.Rows() || d.mlpOut != nil || d.told != nil) {
			return nil, nil
		}
	}
	return rec, nil
}

// Step takes texts further by a token each, as [Cache.Continue] does, and returns the logits of what follows,
// floats [texts, vocabulary], and where the device has found them the most likely tokens. The logits stay valid until the
// next call of a method of the model.
func (c *Cache) Step(ctx context.Context, slots, tokens []int) (logits Array, best []int, err error) {
	parts := c.all()
	if ctx, err = agreed(ctx, len(parts)); err != nil {
		return nil, nil, err
	}
	err = together(len(parts), func(i int) error {
		l, b, err := parts[i].step(ctx, slots, tokens)
		if i == 0 {
			logits, best = l, b
		}
		return err
	})
	return logits, best, err
}

// step is Step of a part.
func (c *Cache) step(ctx context.Context, slots, tokens []int) (logits Array, best []int, err error) {
	m, n := c.m, len(tokens)
	rec, err := m.recorder(n)
	if err != nil {
		return nil, nil, err
	}
	if rec != nil {
		return c.stepAgain(ctx, rec, parts(slots, tokens))
	}
	h, err := c.goOn(ctx, parts(slots, tokens))
	if err != nil {
		return nil, nil, err
	}
	if c.logits == nil || c.logits.Len() < n*m.Vocab() {
		m.ops.Free(c.logits, c.some)
		c.logits, c.some = m.ops.Floats(n*m.Vocab()), m.headRoom(n)
	}
	logits = c.logits.Slice(0, n*m.Vocab())
	m.logits(logits, c.some, h, n)
	return logits, nil, m.ops.Err()
}

// parts returns texts with a token each.
func parts(slots, tokens []int) []Part {
	all := make([]Part, len(tokens))
	for i := range all {
		all[i] = Part{Slot: slots[i], Tokens: tokens[i : i+1]}
	}
	return all
}

// stepAgain does a step by what was recorded for one of as many texts.
func (c *Cache) stepAgain(ctx context.Context, rec Recorder, parts []Part) (logits Array, best []int, err error) {
	r, runs, err := c.begin(ctx, rec, parts)
	if err != nil {
		return nil, nil, err
	}
	best, err = c.end(r, runs)
	return r.logits, best, err
}

// begin queues a step.
func (c *Cache) begin(ctx context.Context, rec Recorder, parts []Part) (*recordedStep, []Run, error) {
	m := c.m
	tokens, runs, err := c.runs(parts)
	if err == nil {
		err = m.check(tokens)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	n := len(tokens)
	r := c.recorded[n]
	if r == nil {
		r = c.newStep(rec, n)
		c.recorded[n] = r
	}
	at := r.begin(rec, tokens, runs)
	if r.again != nil {
		r.again.Replay()
	} else if r.again, err = rec.Record(func() { c.record(rec, r, at) }); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.name, err)
	}
	return r, runs, nil
}

// end waits for the first step that was queued, of rows of some texts each, and returns the most likely tokens that follow.
func (c *Cache) end(r *recordedStep, runs []Run) (best []int, err error) {
	out := make([]float32, 2*r.t)
	if err := r.again.Read(out); err != nil {
		c.spoil(runs)
		return nil, err
	}
	for row, bad := range out[:r.t] {
		if bad != 0 {
			c.spoil(runs)
			return nil, fmt.Errorf("%s: the hidden state of token %d is %w", c.m.name, position(runs, row), ErrNotFinite)
		}
		best = append(best, int(out[r.t+row]))
	}
	for _, run := range runs {
		c.lengths[run.Slot] = run.From + 1
	}
	return best, nil
}

// Ahead is texts that go on by their most likely tokens, a step each. The device takes a step's tokens from the step before,
// and has the next one at hand while the host reads them.
type Ahead struct {
	parts  []*Ahead // of all parts of a divided model, on the first; else nil
	c      *Cache
	r      *recordedStep
	runs   []Run // of the step that is read next
	left   int   // steps that may yet be queued
	queued int   // that were not read
}

// ahead is how many steps are queued at most: one that the device is at, and one behind it.
const aheadSteps = 2

// Ahead goes on with texts from a token each, as [Cache.Step] does, by so many steps at most. Until it is closed no other
// method of the model or the cache may be called but Len. It returns nil where the host takes part in steps.
func (c *Cache) Ahead(ctx context.Context, slots, tokens []int, steps int) (*Ahead, error) {
	parts := c.all()
	ctx, err := agreed(ctx, len(parts))
	if err != nil {
		return nil, err
	}
	all := make([]*Ahead, len(parts))
	err = together(len(parts), func(i int) (err error) {
		all[i], err = parts[i].ahead(ctx, slots, tokens, steps)
		return err
	})
	if err == nil && len(all) > 1 && all[0] != nil {
		all[0].parts = all
	}
	return all[0], err
}

// ahead is Ahead of a part.
func (c *Cache) ahead(ctx context.Context, slots, tokens []int, steps int) (*Ahead, error) {
	rec, err := c.m.recorder(len(tokens))
	if rec == nil || err != nil {
		return nil, err
	}
	r, runs, err := c.begin(ctx, rec, parts(slots, tokens))
	if err != nil {
		return nil, err
	}
	a := &Ahead{c: c, r: r, runs: runs, left: steps - 1, queued: 1}
	for _, run := range runs {
		a.left = min(a.left, c.positions-run.From-1)
	}
	return a, nil
}

// Next returns the most likely tokens that follow, after one step more. Those that they follow have been read then. After
// the last step there is an error.
func (a *Ahead) Next(ctx context.Context) (best []int, err error) {
	if a.parts == nil {
		return a.next(ctx)
	}
	if ctx, err = agreed(ctx, len(a.parts)); err != nil {
		return nil, err
	}
	err = together(len(a.parts), func(i int) error {
		b, err := a.parts[i].next(ctx)
		if i == 0 {
			best = b
		}
		return err
	})
	return best, err
}

// next is Next of a part.
func (a *Ahead) next(ctx context.Context) ([]int, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for a.left > 0 && a.queued < aheadSteps {
		a.r.again.Replay()
		a.left--
		a.queued++
	}
	if a.queued == 0 {
		return nil, fmt.Errorf("%s: no step is left", a.c.m.name)
	}
	a.queued--
	best, err := a.c.end(a.r, a.runs)
	for i := range a.runs {
		a.runs[i].From++
	}
	return best, err
}

// Close leaves the texts as the last step that was read has made them, or empty where the model forgets and there were more.
func (a *Ahead) Close() {
	for _, p := range a.parts {
		if p != a {
			p.Close()
		}
	}
	if a.queued > 0 {
		a.c.spoil(a.runs)
	}
	for ; a.queued > 0; a.queued-- {
		_ = a.r.again.Read(make([]float32, 2*a.r.t)) // nobody asks what came of it
	}
}

// record asks for a step.
func (c *Cache) record(rec Recorder, r *recordedStep, at Step) {
	m := c.m
	m.entered(r.activations, func(h Array, w Weight, scale float64) { rec.EmbedAt(h, r.tokens, w, float32(scale)) })
	if !m.usual() {
		for i := range m.layers {
			if d := &m.layers[i]; d.mlpOut != nil || d.told != nil {
				c.layer(r.activations, i, at, r.places)
			} else {
				c.recordPlain(rec, r, i, at)
			}
		}
		m.states(r.activations)
	} else {
		x := c.recordIn(rec, r, 0)
		m.ops.RMSNorm(x, r.h, m.layers[0].attnNorm, r.t, m.layers[0].block.AttnNorm.Eps)
		for i := range m.layers {
			y, norm, eps := r.n, m.norm, m.desc.Norm.Eps
			if i+1 < len(m.layers) {
				norm, eps = m.layers[i+1].attnNorm, m.layers[i+1].block.AttnNorm.Eps
				if m.layers[i].moe == nil {
					y = c.recordIn(rec, r, i+1)
				}
			}
			c.recordLayer(rec, r, i, at, x, y, norm, eps)
			x = y
		}
	}
	rec.MarkNotFinite(r.marks, r.h, r.t, m.desc.Hidden)
	m.logits(r.logits, r.some, r.n, r.t)
	end := StepEnd{Logits: r.logits, Marks: r.marks, Tokens: r.tokens, Places: r.places.rows.dev}
	for _, rope := range r.places.order {
		turn, table := r.places.turns[rope], c.tables[rope]
		end.Angles = append(end.Angles, Angles{Cos: turn.cos.dev, Sin: turn.sin.dev, CosTable: table.cos, SinTable: table.sin})
	}
	rec.Advance(end)
}

// recordLayer asks for a layer that adds what it computes as it is: from its norm x to the next one, y, both in r.n.
func (c *Cache) recordLayer(rec Recorder, r *recordedStep, i int, at Step, x, y, next Array, eps float64) {
	d, rows := &c.m.layers[i], r.t
	rec.Linear(c.recordMixer(rec, r, i, at, x), rows, d.out().to(r.sum))
	if d.moe == nil {
		in := c.m.input(r.activations, r.n, rows, d.mlp.recordIn()...)
		c.m.addNorm(rec, in, r.h, r.sum, d.mlpNorm, rows, d.block.MLPNorm.Eps)
		c.recordMLP(rec, r, d.mlp, in, d.mlp.down.to(r.sum))
		c.m.addNorm(rec, y, r.h, r.sum, next, rows, eps)
		return
	}
	rec.AddNorm(r.n, r.h, r.sum, d.mlpNorm, rows, d.block.MLPNorm.Eps)
	c.recordMix(rec, r, d, next, eps)
}

// addNorm asks for [Recorder.AddNorm] of what all parts make.
func (m *Model) addNorm(rec Recorder, y, h, x, w Array, rows int, eps float64) {
	if m.division == nil {
		rec.AddNorm(y, h, x, w, rows, eps)
	} else if s, ok := rec.(SumNormer); !ok || !s.SumAddNorm(y, h, x, w, rows, eps) {
		m.sum(x)
		rec.AddNorm(y, h, x, w, rows, eps)
	}
}

// SumNormer is implemented by [Peer]s that add up over all devices on the way to a norm.
type SumNormer interface {
	// SumAddNorm is AddUp of x and AddNorm, or false where it is not for so many rows. x may stay as it was.
	SumAddNorm(y, h, x, w Array, rows int, eps float64) bool
}

// recordPlain asks for [Cache.layer] of one that adds what its MLP or its mixture computes as it is.
func (c *Cache) recordPlain(rec Recorder, r *recordedStep, i int, at Step) {
	m, d, a := c.m, &c.m.layers[i], r.activations
	c.mix(a, i, at, r.places)
	if d.feeds() {
		if d.moe == nil {
			x := m.normFor(a, d.mlpNorm, d.block.MLPNorm.Eps, d.mlp.recordIn()...)
			m.residual(a, nil, 0, func(y Array, add bool) { c.recordMLP(rec, r, d.mlp, x, d.mlp.down.into(y, add)) })
		} else {
			m.mlpIn(a, d)
			c.recordMix(rec, r, d, m.norm, m.desc.Norm.Eps) // which nobody reads: what comes next writes its own
		}
	}
	m.leave(a, d)
}

// recordMix asks for the mixture of a layer of r.n, which takes the next norm.
func (c *Cache) recordMix(rec Recorder, r *recordedStep, d *layer, next Array, eps float64) {
	mix := MixStep{Y: r.n, H: r.h, X: r.n, Rows: r.t, Norm: next, Eps: eps}
	if d.moe.shared != nil {
		c.recordMLP(rec, r, d.moe.shared, r.n, d.moe.shared.down.to(r.sum))
		mix.Shared = r.sum
		if d.moe.desc.SharedGate != nil {
			rec.Linear(r.n, r.t, d.moe.sharedGate.to(r.shared))
			mix.SharedGate = r.shared
		}
	}
	rec.Mix(d.moe.mixture, mix)
}

// recordMLP asks for what an MLP makes of x, whose last product is down.
func (c *Cache) recordMLP(rec Recorder, r *recordedStep, d *mlp, x Array, down Product) {
	rows, n := r.t, r.t*width(d.up.w)
	gate, up := r.both.Slice(0, n), r.both.Slice(n, 2*n)
	y := gate
	switch both := d.both; {
	case both.w != nil && both.bias == nil && rec.Gates(rows, both.w, d.act):
		y = c.m.inputIn(r.both.Slice(n, 3*n), gate, rows, d.down.w) // beside x, which is read meanwhile
		rec.Gated(y, x, rows, both.w, d.act)
	case both.w != nil:
		joined := r.both.Slice(0, 2*n)
		rec.Linear(x, rows, Product{Y: joined, W: both.w, Bias: both.bias})
		y = c.m.input(r.activations, r.both.Slice(2*n, 3*n), rows, d.down.w)
		rec.GLURows(y, joined, rows, d.act)
	default:
		y = c.m.input(r.activations, gate, rows, d.down.w)
		c.m.gates(d, y, gate, up, x, rows)
	}
	rec.Linear(y, rows, down)
}

// recordIn returns what the mixer of a layer reads, in r.n.
func (c *Cache) recordIn(rec Recorder, r *recordedStep, i int) Array {
	by := c.m.layers[i].mixer.in()
	if t, ok := c.m.layers[i].mixer.(recorded); ok {
		by = t.recordIn(rec, r.t)
	}
	return c.m.input(r.activations, r.n, r.t, by...)
}

// recordMixer asks for what the last layer of a mixer reads, of x.
func (c *Cache) recordMixer(rec Recorder, r *recordedStep, i int, at Step, x Array) Array {
	if t, ok := c.m.layers[i].mixer.(recorded); ok {
		return t.record(c.m, rec, r, x, c.layers[i], at)
	}
	return c.m.layers[i].mixer.recall(c.m, r.activations, x, c.layers[i], at, r.places)
}
