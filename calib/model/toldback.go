package model

// toldScratch is what the way back needs of what layers are told, see [arch.Told]. All are acts but after.
type toldScratch struct {
	after              Array // floats [t, hidden], the residual stream behind the MLP
	n                  Array // [t, hidden], the same
	gate, u, mid, dmid Array // [t, width]
}

// newToldScratch allocates it where layers are told something.
func (m *Model) newToldScratch(t int) (s toldScratch) {
	if m.desc.Tokens == nil {
		return s
	}
	hidden, width := t*m.desc.Hidden, t*m.desc.Tokens.Width
	return toldScratch{
		after: m.ops.Floats(hidden), n: m.ops.Acts(hidden),
		gate: m.ops.Acts(width), u: m.ops.Acts(width), mid: m.ops.Acts(width), dmid: m.ops.Acts(width),
	}
}

func (s *toldScratch) free(ops Ops) { ops.Free(s.after, s.n, s.gate, s.u, s.mid, s.dmid) }

// told takes dh through what a layer makes of what it is told. It uses up what the mixer reads, in a.n.
func (b *backward) tell(d *layer) {
	m, ops, s := b.m, b.ops, &b.toldScratch
	a := b.a
	a.h = s.after
	ops.Copy(a.h, b.a.h)
	m.fed(a, d)
	ops.Copy(s.n, a.h)
	ops.Linear(s.n, a.t, d.told.gate.to(s.gate))
	m.toldOf(s.u, a, d)
	act := d.block.Told.Act
	ops.GLU(s.mid, s.gate, s.u, act)
	ops.Linear(s.mid, a.t, d.told.proj.to(a.y))

	dy := b.output(d.told.out, a.y, d.block.Told.Out.Eps)
	b.scales(&d.told.proj, dy, s.mid, a.t)
	ops.LinearBack(s.dmid, dy, a.t, d.told.proj.w, false)
	ops.GLUBack(s.gate, s.u, s.dmid, s.gate, s.u, act)
	b.scales(&d.told.gate, s.gate, s.n, a.t)
	ops.LinearBack(b.dn, s.gate, a.t, d.told.gate.w, false)
	ops.AddTo(b.dh, b.dn)
}
