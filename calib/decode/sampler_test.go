package decode

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/calib/model"
)

// TestCandidates compares what is left to choose from with transformers; scripts/sampling.py makes the golden file.
func TestCandidates(t *testing.T) {
	data, err := os.ReadFile("testdata/sampling.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Logits [][]float32
		Cases  []struct {
			Row         int
			Temperature float64
			TopK        int                `json:"top_k"`
			TopP        float64            `json:"top_p"`
			MinP        float64            `json:"min_p"`
			Probs       map[string]float64 // by token
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for i, c := range golden.Cases {
		s := NewSampler(Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP}, 0)
		kept, err := s.candidates(golden.Logits[c.Row])
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, k := range kept {
			sum += k.prob
		}
		// Of equals that are not all kept, others may be.
		var got, want []float64
		for _, k := range kept {
			got = append(got, k.prob/sum)
		}
		for _, p := range c.Probs {
			want = append(want, p)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-5 }) {
			t.Errorf("case %d %+v: probabilities %v, want %v", i, s.o, got, want)
		}
	}
}

// TestSampler holds choices to what they may be.
func TestSampler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Float32Range(-30, 30), 1, 60).Draw(t, "logits")
		if rapid.Bool().Draw(t, "equals") {
			for i := range logits {
				logits[i] = float32(math.Round(float64(logits[i]) / 10))
			}
		}
		o := Sampling{
			Temperature: rapid.Float64Range(0.05, 5).Draw(t, "temperature"),
			TopK:        rapid.IntRange(0, 70).Draw(t, "k"),
			TopP:        rapid.Float64Range(0, 1).Draw(t, "p"),
			MinP:        rapid.Float64Range(0, 1).Draw(t, "min p"),
			Seed:        rapid.Uint64().Draw(t, "seed"),
		}
		best := slices.Index(logits, slices.Max(logits))
		s := NewSampler(o, 3)
		kept, err := s.candidates(logits)
		if err != nil {
			t.Fatal(err)
		}
		in := make(map[int]bool)
		least := float32(math.Inf(1))
		for _, c := range kept {
			if in[c.token] {
				t.Fatalf("token %d twice", c.token)
			}
			in[c.token] = true
			least = min(least, logits[c.token])
		}
		if !in[best] {
			t.Fatal("the most likely token is left out")
		}
		for i, v := range logits {
			if v > least && !in[i] {
				t.Fatalf("token %d is left out, and one less likely is not", i)
			}
			if k := o.TopK; k > 0 && in[i] {
				above := 0
				for _, w := range logits {
					if w > v {
						above++
					}
				}
				if above >= k {
					t.Fatalf("token %d is not among the first %d", i, k)
				}
			}
		}
		again := NewSampler(o, 3)
		for range 5 {
			a, errA := s.Choose(logits)
			b, errB := again.Choose(logits)
			if a != b || !in[a] || errA != nil || errB != nil {
				t.Fatalf("chose %d and %d, %v and %v", a, b, errA, errB)
			}
		}
		for _, o := range []Sampling{{}, {Temperature: 1, TopK: 1, Seed: o.Seed}, {Temperature: 1, MinP: 1}, {Temperature: 1, TopP: 1e-9}} {
			got, err := NewSampler(o, 0).Choose(logits)
			if err != nil || logits[best]-logits[got] > 1e-6 || o.Greedy() && got != best {
				t.Fatalf("%+v chose %d, %v: want %d", o, got, err, best)
			}
		}
	})
}

// rankedOf returns what stands first in logits, with a sum that is off as a device's may be.
func rankedOf(logits []float32, count int, temperature, off float64) model.Ranked {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	var r model.Ranked
	for i, token := range order {
		if i < count {
			r.Tokens, r.Values = append(r.Tokens, token), append(r.Values, logits[token])
		}
		r.Sum += math.Exp(float64(logits[token])/temperature - float64(logits[order[0]])/temperature)
	}
	r.Sum *= 1 + off
	return r
}

// TestRanked: what is chosen from what stands first is what would be chosen from all.
func TestRanked(t *testing.T) {
	chosen := 0
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Float32Range(-30, 30), 1, 60).Draw(t, "logits")
		if rapid.Bool().Draw(t, "equals") {
			for i := range logits {
				logits[i] = float32(math.Round(float64(logits[i]) / 10))
			}
		}
		o := Sampling{
			Temperature: rapid.OneOf(rapid.Float64Range(0.05, 5), rapid.Just(1e300)).Draw(t, "temperature"),
			TopK:        rapid.IntRange(0, 70).Draw(t, "k"),
			TopP:        rapid.Float64Range(0, 1).Draw(t, "p"),
			MinP:        rapid.OneOf(rapid.Float64Range(0, 1), rapid.Just(0.)).Draw(t, "min p"),
			Seed:        rapid.Uint64().Draw(t, "seed"),
		}
		if rapid.Bool().Draw(t, "no k") {
			o.TopK = 0
		}
		r := rankedOf(logits, rapid.IntRange(1, len(logits)).Draw(t, "count"), o.Temperature, rapid.Float64Range(-1, 1).Draw(t, "off")*1e-12)
		few, all := NewSampler(o, 1), NewSampler(o, 1)
		for range 3 {
			got, ok := few.ChooseRanked(r, len(logits))
			if !ok {
				if r := rankedOf(logits, len(logits), o.Temperature, 0); o.Temperature < 10 && !isDue(o, len(logits)) {
					if _, ok := few.ChooseRanked(r, len(logits)); !ok {
						t.Fatal("nothing is chosen from all")
					}
				}
				return
			}
			chosen++
			want, err := all.Choose(logits)
			if err != nil || got != want {
				t.Fatalf("chose %d of the first %d, and %d, %v of all", got, len(r.Tokens), want, err)
			}
		}
	})
	if chosen == 0 {
		t.Error("nothing was chosen")
	}
	for _, sum := range []float64{math.NaN(), math.Inf(1)} {
		if _, ok := NewSampler(Sampling{Temperature: 1, TopK: 1}, 0).ChooseRanked(model.Ranked{Values: []float32{2, 1}, Tokens: []int{0, 1}, Sum: sum}, 9); ok {
			t.Errorf("chose beside a sum of %v", sum)
		}
	}
}

// TestWeighed: what is chosen by what parts weigh is what would be chosen from all.
func TestWeighed(t *testing.T) {
	chosen, asked := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Float32Range(-30, 30), 1, 60).Draw(t, "logits")
		o := Sampling{Temperature: rapid.Float64Range(0.3, 5).Draw(t, "temperature"), Seed: rapid.Uint64().Draw(t, "seed")}
		if rapid.Bool().Draw(t, "none") {
			logits[len(logits)/2] = float32(math.Inf(-1))
			logits[0] = 1
		}
		w := model.Weighed{Part: rapid.IntRange(1, 20).Draw(t, "part")}
		for part := range slices.Chunk(logits, w.Part) {
			top, sum := slices.Max(part), 0.0
			for _, v := range part {
				if !math.IsInf(float64(top), -1) {
					sum += math.Exp(float64(v)/o.Temperature - float64(top)/o.Temperature)
				}
			}
			w.Tops, w.Sums = append(w.Tops, top), append(w.Sums, sum*(1+1e-13*rapid.Float64Range(-1, 1).Draw(t, "off")))
		}
		few, all := NewSampler(o, 1), NewSampler(o, 1)
		for range 20 {
			want, err := all.Choose(logits)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := few.ChooseWeighed(w, func(from int) []float32 { return logits[from:min(from+w.Part, len(logits))] })
			asked++
			if ok {
				chosen++
			} else if got, err = few.Choose(logits); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Fatalf("chose %d, %t, and %d of all", got, ok, want)
			}
		}
	})
	if chosen < asked*9/10 {
		t.Errorf("only %d of %d were chosen", chosen, asked)
	}
	// A border at which rounding may decide, and numbers that are none.
	sure := Sampling{Temperature: 1}
	u := NewSampler(sure, 0).rand.Float64()
	edge := model.Weighed{Part: 1, Tops: []float32{0, 0}, Sums: []float64{u, 1 - u}}
	for _, w := range []model.Weighed{edge, {Part: 1, Tops: []float32{0}, Sums: []float64{math.NaN()}}} {
		s := NewSampler(sure, 0)
		if _, ok := s.ChooseWeighed(w, func(int) []float32 { return []float32{0} }); ok || s.rand.Float64() != u {
			t.Errorf("%v: chosen, or the draw is spent", w)
		}
	}
}

// TestWeighedLimits: what parts weigh does not say which tokens a limit leaves, nor which is the most likely. A limit that is
// switched off, by 0 or as 1 does for top-p, is none.
func TestWeighedLimits(t *testing.T) {
	w := model.Weighed{Part: 2, Tops: []float32{2, 1}, Sums: []float64{1 + math.Exp(-1), 1 + math.Exp(-1)}}
	read := func(from int) []float32 { return []float32{2, 1, 1, 0}[from : from+2] }
	for _, c := range []struct {
		o    Sampling
		want bool
	}{
		{Sampling{}, false},
		{Sampling{Temperature: 1}, true},
		{Sampling{Temperature: 1, TopK: 1}, false},
		{Sampling{Temperature: 1, TopK: 3}, false},
		{Sampling{Temperature: 1, TopP: 0.5}, false},
		{Sampling{Temperature: 1, TopP: 1}, true},
		{Sampling{Temperature: 1, MinP: 0.1}, false},
	} {
		s, untouched := NewSampler(c.o, 0), NewSampler(c.o, 0)
		token, ok := s.ChooseWeighed(w, read)
		if ok != c.want || !ok && token != 0 {
			t.Errorf("%+v: token %d, %t", c.o, token, ok)
		}
		if drawn := *s.pcg != *untouched.pcg; drawn != c.want {
			t.Errorf("%+v: a draw is spent: %t", c.o, drawn)
		}
	}
}

// TestZero: 0 switches each limit off, and 1 that of top-p. In transformers 5.24 top_k and min_p of 0 do so too, while top_p of 0 takes
// the most likely token.
func TestZero(t *testing.T) {
	logits := []float32{3, -2, 1, 0.5, -30}
	all, err := NewSampler(Sampling{Temperature: 1}, 0).candidates(logits)
	if err != nil || len(all) != len(logits) {
		t.Fatalf("%d candidates, %v", len(all), err)
	}
	for _, o := range []Sampling{{Temperature: 1, TopK: 0, TopP: 0, MinP: 0}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopK: 5}} {
		kept, err := NewSampler(o, 0).candidates(logits)
		if err != nil || len(kept) != len(logits) {
			t.Errorf("%+v: %d candidates, %v", o, len(kept), err)
		}
	}
}

// isDue reports whether the last token may be due to the rounding of a sum.
func isDue(o Sampling, vocab int) bool { return o.TopP > 0 && (o.TopK == 0 || o.TopK >= vocab) }

// TestFrequencies draws many times.
func TestFrequencies(t *testing.T) {
	logits := []float32{1, 3, 2, -1, 3}
	for _, o := range []Sampling{{Temperature: 1}, {Temperature: 2}, {Temperature: 0.7, TopK: 3}, {Temperature: 1.5, TopP: 0.8}} {
		const draws = 20000
		s := NewSampler(o, 0)
		kept, err := s.candidates(logits)
		if err != nil {
			t.Fatal(err)
		}
		want, sum := make([]float64, len(logits)), 0.0
		for _, c := range kept {
			want[c.token] = c.prob
			sum += c.prob
		}
		got := make([]float64, len(logits))
		for range draws {
			i, err := s.Choose(logits)
			if err != nil {
				t.Fatal(err)
			}
			got[i]++
		}
		for i := range want {
			p := want[i] / sum
			if d := math.Abs(got[i]/draws - p); d > 5*math.Sqrt(p*(1-p)/draws)+1e-12 {
				t.Errorf("%+v: token %d came in %v of draws, want %v", o, i, got[i]/draws, p)
			}
		}
	}
}

func TestSamplerErrors(t *testing.T) {
	nan := float32(math.NaN())
	for _, o := range []Sampling{{}, {Temperature: 1}, {Temperature: 1, TopK: 2}} {
		if _, err := NewSampler(o, 0).Choose([]float32{1, nan, 2}); err == nil {
			t.Errorf("%+v chose among no numbers", o)
		}
	}
	for _, o := range []Sampling{
		{Temperature: -1}, {Temperature: math.NaN()}, {Temperature: math.Inf(1)}, {TopK: -1}, {TopP: -0.1}, {TopP: 1.1}, {TopP: math.NaN()}, {MinP: 2},
	} {
		if o.Check() == nil {
			t.Errorf("%+v passes", o)
		}
	}
	if err := (Sampling{Temperature: 1, TopK: 3, TopP: 1, MinP: 1}).Check(); err != nil {
		t.Error(err)
	}
}
