package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

// Ahead says what products of few rows bring into the level-2 cache for memory to go on reading while nothing is multiplied, in bytes of
// all blocks, and how many multiprocessors they leave to what is between them. It changes no bit of a result; of the zero Ahead nothing is done.
type Ahead struct {
	Next   int  // of what the product behind reads first, as soon as the last loads are out
	Own    int  // of what the product itself reads first, before X is there
	Within int  // of what it reads later, in front of its loads
	Lines  bool // line by line, also where the GPU has bulks

	Spare int // multiprocessors that get no block, as far as no block has more to do for that
}

// Asks reports whether anything is brought into the cache.
func (a Ahead) Asks() bool { return a.Next > 0 || a.Own > 0 || a.Within > 0 }

// Step is what is known of a product that is one of several in a row.
type Step struct {
	Ahead
	Behind *Follower // the product behind it; nil: none, or not known
	Told   bool      // whether the product in front had this one behind it

	// Reads are those of the product behind, which the engine fills in.
	Reads []Reads
}

// Follower is a product that has another in front of it.
type Follower struct {
	W     *Matrix
	M     int
	Gates Gates
}

// Reads are what each block of a grid reads of memory: pieces that lie one behind the other, as those of blocks do.
type Reads struct {
	At         driver.Ptr
	Blocks     int
	Each, Over int // pieces of a block; the first Over have one more
	From, To   int // of them that are read
	Bytes      int // of each
	Pitch      int // from a piece to the next
}

// Reader is implemented by tiles that know what their products read first.
type Reader interface {
	// Reads returns what the blocks of a product read first of a matrix whose parts are at some addresses, some bytes of all blocks; nil where that is not
	// known. Of operands it looks at rows, gates and what is spared.
	Reads(g GPU, at []driver.Ptr, by Way, o Operands, bytes int) []Reads
}

// readsOf returns what a product reads first.
func (e *Engine) readsOf(f *Follower, a Ahead) []Reads {
	if f == nil || f.W == nil || a.Next == 0 || f.M > MaxRows || len(f.W.at) == 0 || f.W.at[0] == 0 {
		return nil
	}
	r, ok := f.W.Tiles.(Reader)
	if !ok {
		return nil
	}
	by, err := e.choice(f.W.Tiles, f.M)
	if f.Gates != (Gates{}) {
		by, err = e.gated(f.W.Tiles, f.M, f.Gates)
	}
	if err != nil { // which who multiplies by it is told
		return nil
	}
	return r.Reads(e.gpu, f.W.at, by, Operands{M: f.M, Gates: f.Gates, Step: &Step{Ahead: a}}, a.Next)
}
