package quantize

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
)

func TestParseRule(t *testing.T) {
	for _, tc := range []struct {
		text, match string
		want        weight.Spec
		keep        bool
		fail        string
	}{
		{text: "down_proj=3", match: "down_proj", want: weight.Spec{Bits: 3}},
		{text: "a=5:128:js:absmax:f32", match: "a", want: weight.Spec{Bits: 5, Group: 128, Codebook: "js", Scale: weight.Absmax, ScaleType: weight.F32}},
		{text: "a=::fp", match: "a", want: weight.Spec{Codebook: "fp"}},
		{text: "a=4:row", match: "a", want: weight.Spec{Bits: 4, Group: weight.RowGroup}},
		{text: "a=4:64:file:x/y.json:mse", match: "a", want: weight.Spec{Bits: 4, Group: 64, Codebook: "file:x/y.json", Scale: weight.MSE}},
		{text: "a=b=keep", match: "a=b", keep: true},
		{text: "a", fail: "want REGEX="},
		{text: "(=4", fail: "missing closing"},
		{text: "a=four", fail: `bits "four"`},
		{text: "a=0", fail: `bits "0"`},
		{text: "a=:::::bcq", match: "a", want: weight.Spec{Kind: "bcq"}},
		{text: "a=8:row:::f32:bcq", match: "a", want: weight.Spec{Kind: "bcq", Bits: 8, Group: weight.RowGroup, ScaleType: weight.F32}},
		{text: "a=2.5::trellis", match: "a", want: weight.Spec{Bits: 2, Half: true, Codebook: "trellis"}},
		{text: "a=3.5:row:::f32:trellis", match: "a", want: weight.Spec{Kind: "trellis", Bits: 3, Half: true, Group: weight.RowGroup, ScaleType: weight.F32}},
		{text: "a=2.5:::::lut", fail: "2.5 bits: weights of kind lut have whole ones, and half a bit more is for --codebook trellis"},
		{text: "a=2.25", fail: `bits "2.25": want a number`},
		{text: "a=2.50", fail: `bits "2.50": want a number`},
		{text: "a=3:64:trellis:::trellis", fail: "weights of kind trellis have one scale a row: no group of 64"},
		{text: "a=3::trellis:mse::trellis", fail: "weights of kind trellis have no scale method"},
		{text: "a=6:::::lut", fail: "6 bits: want 2 to 5"},
		{text: "a=9", fail: "9 bits: want 1 to 8"},
		{text: "a=4:64:nf:::bcq", fail: "weights of kind bcq have neither a codebook nor a scale method"},
		{text: "a=4:65", fail: `group "65"`},
		{text: "a=4:64:nf4", fail: `unknown codebook "nf4"`},
		{text: "a=4:64:nf:max", fail: `unknown scale method "max"`},
		{text: "a=4:64:nf:mse:f8", fail: `unknown scale type "f8"`},
		{text: "a=", fail: "after the ="},
		{text: "a=4:64:nf:mse:f16:x", fail: `unknown kind "x" of weights: want lut, bcq, lut24 or trellis`},
		{text: "a=::::::gptq", match: "a", want: weight.Spec{Method: "gptq"}},
		{text: "a=3:64:file:x:mse:f16:lut:rtn", match: "a", want: weight.Spec{Bits: 3, Group: 64, Codebook: "file:x", Scale: weight.MSE, ScaleType: weight.F16, Kind: "lut", Method: "rtn"}},
		{text: "a=4:64:nf:mse:f16:lut:x", fail: `unknown method "x"`},
		{text: "a=4:64:nf:mse:f16:lut:rtn:", fail: "after the ="},
	} {
		t.Run(tc.text, func(t *testing.T) {
			r, err := ParseRule(tc.text)
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) {
					t.Errorf("got error %v, want %q", err, tc.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Match.String() != tc.match || r.Format != tc.want || r.Keep != tc.keep {
				t.Errorf("got %q %+v keep %v", r.Match, r.Format, r.Keep)
			}
			again, err := ParseRule(r.String())
			if err != nil || again.Format != r.Format || again.Keep != r.Keep {
				t.Errorf("%q parses to %+v (%v), want %+v", r.String(), again, err, r)
			}
		})
	}
}

func TestNewPlan(t *testing.T) {
	racetest.Skip(t)
	const up0, down0 = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
	for _, tc := range []struct {
		name, recipe, fail string
		want               map[string]string // tensor to format
	}{
		{name: "defaults", recipe: `{}`, want: map[string]string{
			"model.layers.0.self_attn.q_proj.weight": "4 64 auto mse f16", "model.embed_tokens.weight": "", "model.norm.weight": "",
		}},
		{name: "2 bits", recipe: `{"bits": 2}`, want: map[string]string{up0: "2 64 auto mse f16"}},
		{name: "3 bits", recipe: `{"bits": 3}`, want: map[string]string{up0: "3 64 auto mse f16"}},
		{name: "5 bits", recipe: `{"bits": 5, "group": "row"}`, want: map[string]string{up0: "5 row auto mse f16"}},
		{name: "3 bits, scale named", recipe: `{"bits": 3, "scale": "absmax"}`, want: map[string]string{up0: "3 64 auto absmax f16"}},
		{name: "3 bits, codebook named", recipe: `{"bits": 3, "codebook": "nf"}`, want: map[string]string{up0: "3 64 nf mse f16"}},
		{name: "a codebook named", recipe: `{"codebook": "int"}`, want: map[string]string{up0: "4 64 int mse f16"}},
		{name: "each width has its own table", recipe: `{"bits": 3, "tensors": [{"match": "down", "bits": 4}]}`, want: map[string]string{up0: "3 64 auto mse f16", down0: "4 64 auto mse f16"}},
		{name: "and scales", recipe: `{"tensors": [{"match": "down", "bits": 3, "group": 32}]}`, want: map[string]string{up0: "4 64 auto mse f16", down0: "3 32 auto mse f16"}},
		{name: "unless scales are named", recipe: `{"scale": "absmax", "tensors": [{"match": "down", "bits": 3}]}`, want: map[string]string{up0: "4 64 auto absmax f16", down0: "3 64 auto absmax f16"}},
		{name: "or a codebook for all", recipe: `{"codebook": "js", "tensors": [{"match": "down", "bits": 3}]}`, want: map[string]string{down0: "3 64 js mse f16"}},
		{name: "or a codebook by the rule", recipe: `{"tensors": [{"match": "down", "bits": 3, "codebook": "int"}]}`, want: map[string]string{down0: "3 64 int mse f16"}},
		{name: "or by another rule", recipe: `{"tensors": [{"match": "layers.0", "codebook": "kbit"}, {"match": "down", "bits": 3}]}`, want: map[string]string{up0: "4 64 kbit mse f16", down0: "3 64 kbit mse f16"}},
		{name: "later rules win field by field", recipe: `{"tensors": [{"match": "mlp", "bits": 3}, {"match": "down", "group": 128}, {"match": "layers.3", "keep": true}]}`, want: map[string]string{
			"model.layers.0.mlp.up_proj.weight": "3 64 auto mse f16", "model.layers.0.mlp.down_proj.weight": "3 128 auto mse f16", "model.layers.3.mlp.down_proj.weight": "",
		}},
		{name: "a rule's codebook changes no scales", recipe: `{"codebook": "nf", "scale": "absmax", "tensors": [{"match": "down", "codebook": "js"}]}`, want: map[string]string{
			"model.layers.0.mlp.down_proj.weight": "4 64 js absmax f16", "model.layers.0.mlp.up_proj.weight": "4 64 nf absmax f16",
		}},
		{name: "bits for an embedding", recipe: `{"tensors": [{"match": "embed", "bits": 5}]}`, want: map[string]string{"model.embed_tokens.weight": "5 64 auto mse f16"}},
		{name: "a pattern that matches nothing", recipe: `{"tensors": [{"match": "down_prj", "bits": 3}]}`, fail: `no tensor that can be quantized matches "down_prj"`},
		{name: "fused layers that differ", recipe: `{"tensors": [{"match": "v_proj", "bits": 5}]}`, fail: "would differ in bits, group or kind"},
		{name: "fused layers that differ in group only", recipe: `{"tensors": [{"match": "v_proj", "group": 32}]}`, fail: "v_proj.weight would differ in bits, group or kind"},
		{name: "fused layers of an MLP that differ in group only", recipe: `{"tensors": [{"match": "up_proj", "group": "row"}]}`, fail: "up_proj.weight would differ in bits, group or kind"},
		{name: "layers that are not fused and differ in group", recipe: `{"tensors": [{"match": "down|o_proj", "group": 32}]}`, want: map[string]string{up0: "4 64 auto mse f16", down0: "4 32 auto mse f16"}},
		{name: "fused layers kept apart", recipe: `{"tensors": [{"match": "gate_proj", "keep": true}]}`, fail: "would differ in bits, group or kind"},
		{name: "fused layers that may differ", recipe: `{"split_fused": true, "tensors": [{"match": "v_proj", "bits": 5}]}`, want: map[string]string{"model.layers.0.self_attn.v_proj.weight": "5 64 auto mse f16"}},
		{name: "a vector", recipe: `{"tensors": [{"match": "norm", "bits": 4}]}`, fail: `no tensor that can be quantized matches "norm"`},
		{name: "nothing", recipe: `{"tensors": [{"match": ".", "keep": true}]}`, fail: "no tensor of the checkpoint would be quantized"},
		{name: "bits out of range", recipe: `{"bits": 6}`, fail: "bits is 6: want 2 to 5"},
		{name: "bits out of a rule's range", recipe: `{"tensors": [{"match": "down", "bits": 6}]}`, fail: `rule "down=6": bits is 6: want 2 to 5`},
		{name: "a kind by its method", recipe: `{"method": "bcq", "bits": 6}`, want: map[string]string{up0: "6 64 f16 bcq bcq"}},
		{name: "a method by its kind", recipe: `{"kind": "bcq"}`, want: map[string]string{up0: "4 64 f16 bcq bcq"}},
		{name: "a kind by a rule", recipe: `{"scale_type": "bf16", "tensors": [{"match": "down", "kind": "bcq", "bits": 3}]}`, want: map[string]string{up0: "4 64 auto mse bf16", down0: "3 64 bf16 bcq bcq"}},
		{name: "a kind by a rule's method", recipe: `{"tensors": [{"match": "down", "method": "bcq", "bits": 3}]}`, want: map[string]string{down0: "3 64 f16 bcq bcq"}},
		{name: "a method alone by a rule", recipe: `{"tensors": [{"match": "down", "method": "bcq"}]}`, want: map[string]string{up0: "4 64 auto mse f16", down0: "4 64 f16 bcq bcq"}},
		{name: "a pattern by its method", recipe: `{"method": "magnitude", "bits": 3}`, want: map[string]string{up0: "3 64 auto mse f16 lut24 magnitude"}},
		{name: "a pattern without a text", recipe: `{"method": "sparsegpt"}`, fail: "method sparsegpt: there is no text to learn from"},
		{name: "a pattern by its kind", recipe: `{"kind": "lut24", "codebook": "nf"}`, want: map[string]string{up0: "4 64 nf mse f16 lut24 magnitude"}},
		{name: "a pattern by a rule, with the table named", recipe: `{"codebook": "q4", "tensors": [{"match": "down", "kind": "lut24"}]}`, want: map[string]string{up0: "4 64 q4 mse f16", down0: "4 64 q4 mse f16 lut24 magnitude"}},
		{name: "a pattern by a rule, with its own table", recipe: `{"bits": 3, "tensors": [{"match": "down", "kind": "lut24"}]}`, want: map[string]string{up0: "3 64 auto mse f16", down0: "3 64 auto mse f16 lut24 magnitude"}},
		{name: "a width of a pattern", recipe: `{"method": "magnitude", "tensors": [{"match": "down", "bits": 3}]}`, want: map[string]string{up0: "4 64 auto mse f16 lut24 magnitude", down0: "3 64 auto mse f16 lut24 magnitude"}},
		{name: "a pattern that a method does not make", recipe: `{"method": "gptq", "kind": "lut24"}`, fail: "method gptq makes no weights of kind lut24"},
		{name: "the plain method by a rule", recipe: `{"method": "bcq", "tensors": [{"match": "down", "method": "rtn"}]}`, want: map[string]string{up0: "4 64 f16 bcq bcq", down0: "4 64 auto mse f16"}},
		{name: "a table by a rule", recipe: `{"method": "bcq", "tensors": [{"match": "down", "kind": "lut", "bits": 3}]}`, want: map[string]string{up0: "4 64 f16 bcq bcq", down0: "3 64 auto mse f16"}},
		{name: "a table without a kind that has one", recipe: `{"method": "bcq", "codebook": "nf"}`, fail: "weights of kind bcq have neither"},
		{name: "a rule's table without a kind that has one", recipe: `{"method": "bcq", "tensors": [{"match": "down", "scale": "mse"}]}`, fail: "weights of kind bcq have neither"},
		{name: "a method that makes another kind", recipe: `{"method": "rtn", "kind": "bcq"}`, fail: "method rtn makes no weights of kind bcq"},
		{name: "scales of another kind", recipe: `{"method": "bcq", "scale_type": "e4m4"}`, fail: "scale type is e4m4: want f16, bf16, f32"},
		{name: "unknown kind", recipe: `{"kind": "zip"}`, fail: `unknown kind "zip"`},
		{name: "fused layers of two kinds", recipe: `{"tensors": [{"match": "v_proj", "kind": "bcq"}]}`, fail: "would differ in bits, group or kind"},
		{name: "a table of one width", recipe: `{"codebook": "q3"}`, want: map[string]string{up0: "3 64 q3 mse f16"}},
		{name: "and its width", recipe: `{"codebook": "e2m1", "bits": 4, "group": 32, "scale_type": "e8m0"}`, want: map[string]string{up0: "4 32 e2m1 mse e8m0"}},
		{name: "and another by a rule", recipe: `{"codebook": "q4", "tensors": [{"match": "down", "bits": 5, "codebook": "q5"}]}`, want: map[string]string{up0: "4 64 q4 mse f16", down0: "5 64 q5 mse f16"}},
		{name: "a table at another width", recipe: `{"codebook": "q4", "bits": 3}`, fail: "codebook q4 has 4 bits, not 3"},
		{name: "a rule's table at another width", recipe: `{"tensors": [{"match": "down", "codebook": "iq4nl", "bits": 5}]}`, fail: "codebook iq4nl has 4 bits, not 5"},
		{name: "a rule's width without its table", recipe: `{"codebook": "q4", "tensors": [{"match": "down", "bits": 5}]}`, fail: "down_proj.weight: codebook q4 has 4 bits, not 5"},
		{name: "powers of two for binary codes", recipe: `{"method": "bcq", "scale_type": "e8m0"}`, fail: "scale type is e8m0: want f16, bf16, f32"},
		{name: "unknown codebook", recipe: `{"codebook": "nf4"}`, fail: `unknown codebook "nf4"`},
		{name: "unknown method", recipe: `{"method": "magic"}`, fail: `unknown method "magic"`},
		{name: "unknown scale", recipe: `{"scale": "max"}`, fail: `unknown scale method "max"`},
		{name: "unknown scale type", recipe: `{"scale_type": "f8"}`, fail: `unknown scale type "f8"`},
		{name: "rings", recipe: `{"codebook": "trellis", "bits": 2.5}`, want: map[string]string{up0: "2.5 row trellis ScaleMethod(0) f16 trellis rtn"}},
		{name: "rings of half a bit more by a rule", recipe: `{"codebook": "trellis", "bits": 2, "tensors": [{"match": "down", "bits": 3.5, "scale_type": "bf16"}]}`, want: map[string]string{
			up0: "2 row trellis ScaleMethod(0) f16 trellis rtn", down0: "3.5 row trellis ScaleMethod(0) bf16 trellis rtn",
		}},
		{name: "rings by a rule's codebook", recipe: `{"bits": 3, "group": 32, "tensors": [{"match": "down", "codebook": "trellis"}]}`, want: map[string]string{
			up0: "3 32 auto mse f16", down0: "3 row trellis ScaleMethod(0) f16 trellis rtn",
		}},
		{name: "rings by a rule's kind", recipe: `{"codebook": "nf", "tensors": [{"match": "down", "kind": "trellis", "bits": 1.5}]}`, want: map[string]string{
			up0: "4 64 nf mse f16", down0: "1.5 row trellis ScaleMethod(0) f16 trellis rtn",
		}},
		{name: "a table by a rule beside rings", recipe: `{"kind": "trellis", "bits": 3, "tensors": [{"match": "down", "codebook": "nf"}]}`, want: map[string]string{
			up0: "3 row trellis ScaleMethod(0) f16 trellis rtn", down0: "3 64 nf mse f16",
		}},
		{name: "and a kind of tables", recipe: `{"codebook": "trellis", "bits": 3, "tensors": [{"match": "down", "kind": "lut", "bits": 4}]}`, want: map[string]string{down0: "4 64 auto mse f16"}},
		{name: "half a bit beside rings", recipe: `{"codebook": "trellis", "bits": 2.5, "tensors": [{"match": "down", "kind": "lut"}]}`, fail: `rule "down=:::::lut": 2.5 bits: weights of kind lut have whole ones`},
		{name: "half a bit of a table", recipe: `{"bits": 3.5}`, fail: "3.5 bits: weights of kind lut have whole ones"},
		{name: "a quarter of a bit", recipe: `{"codebook": "trellis", "bits": 2.25}`, fail: `bits "2.25": want a number`},
		{name: "more bits than rings have", recipe: `{"codebook": "trellis", "bits": 6.5}`, fail: "6.5 bits a weight: codebook trellis has 1 to 6"},
		{name: "rings of a table", recipe: `{"kind": "trellis", "codebook": "js"}`, fail: `unknown trellis codebook "js"`},
		{name: "a table of rings", recipe: `{"kind": "lut", "codebook": "trellis"}`, fail: `unknown codebook "trellis"`},
		{name: "rings with groups", recipe: `{"codebook": "trellis", "group": 64}`, fail: "weights of kind trellis have one scale a row: no group of 64"},
		{name: "rings with a scale method", recipe: `{"codebook": "trellis", "scale": "absmax"}`, fail: "weights of kind trellis have no scale method"},
		{name: "rings by another method", recipe: `{"codebook": "trellis", "method": "bcq"}`, fail: "method bcq makes no weights of kind trellis"},
		{name: "learned rings", recipe: `{"codebook": "trellis", "method": "nfl"}`, fail: "method nfl makes no weights of kind trellis"},
		{name: "rings by a text", recipe: `{"codebook": "trellis", "method": "gptq"}`, fail: "method gptq: there is no text to learn from"},
		{name: "fused layers that differ by half a bit", recipe: `{"codebook": "trellis", "bits": 2, "tensors": [{"match": "v_proj", "bits": 2.5}]}`, fail: "would differ in bits, group or kind"},
		{name: "missing codebook file", recipe: `{"codebook": "file:testdata/none.json"}`, fail: "none.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p *Plan
			r, err := ParseRecipe([]byte(tc.recipe))
			if err == nil {
				p, err = NewPlan(modeltest.Open(t, tiny), r)
			}
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) {
					t.Errorf("got error %v, want %q", err, tc.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sameCommand(t, p)
			got := make(map[string]string)
			for i := range p.Items {
				it := &p.Items[i]
				if _, ok := tc.want[it.Tensor.Name]; !ok {
					continue
				}
				got[it.Tensor.Name] = ""
				if it.Quantized() {
					f := it.Format
					if f.Kind == "bcq" {
						got[it.Tensor.Name] = fmt.Sprintf("%d %d %v %s %s", f.Bits, f.Group, f.ScaleType, f.Method, f.Kind)
						continue
					}
					got[it.Tensor.Name] = strings.Join([]string{f.Width(), weight.GroupName(f.Group), f.Codebook, f.Scale.String(), f.ScaleType.String()}, " ")
					if f.Kind != "lut" {
						got[it.Tensor.Name] += " " + f.Kind + " " + f.Method
					}
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("formats differ (-want +got):\n%s", d)
			}
		})
	}
}

// sameCommand checks that what a container says made it makes it again, with
// whatever defaults.
func sameCommand(t *testing.T, p *Plan) {
	t.Helper()
	var r Recipe
	for args := strings.Fields(p.Recipe.Command())[4:]; len(args) > 0; {
		flag := args[0]
		if args = args[1:]; flag == "--split-fused" {
			r.SplitFused = true
			continue
		}
		if offset, ok := strings.CutPrefix(flag, "--bcq-offset="); ok {
			r.Methods.BCQ.Offset = offset == "true"
			continue
		}
		value := strings.Trim(args[0], "'")
		args = args[1:]
		var err error
		switch flag {
		case "--bits":
			r.Default.Bits, r.Default.Half, err = weight.ParseWidth(value)
		case "--group":
			r.Default.Group, err = weight.ParseGroup(value)
		case "--codebook":
			r.Default.Codebook = value
		case "--method":
			r.Default.Method = value
		case "--scale":
			r.Default.Scale, err = weight.ParseScaleMethod(value)
		case "--scale-type":
			r.Default.ScaleType, err = weight.ParseScaleType(value)
		case "--bcq-rounds":
			r.Methods.BCQ.Rounds, err = strconv.Atoi(value)
		case "--tensor":
			var rule Rule
			rule, err = ParseRule(value)
			r.Rules = append(r.Rules, rule)
		default:
			t.Errorf("unknown flag %s", flag)
		}
		if err != nil {
			t.Fatalf("%s: %v", p.Recipe.Command(), err)
		}
	}
	again, err := NewPlan(modeltest.Open(t, p.Source.Dir()), r)
	if err != nil {
		t.Fatalf("%s: %v", p.Recipe.Command(), err)
	}
	for i := range p.Items {
		if got, want := again.Items[i].Format, p.Items[i].Format; got != want {
			t.Errorf("%s gives %s the format %+v, want %+v", p.Recipe.Command(), p.Items[i].Tensor.Name, got, want)
		}
	}
}

func FuzzParseRecipe(f *testing.F) {
	f.Add([]byte(`{"bits": 3, "group": "row", "codebook": "js", "scale": "mse", "scale_type": "bf16", "split_fused": true}`))
	f.Add([]byte(`{"tensors": [{"match": "down_proj", "bits": 4, "group": 32}, {"match": "a", "keep": true}]}`))
	f.Add([]byte(`{"tensors": [{"match": "("}]} {`))
	f.Add([]byte(`{"group": 64.5, "bits": -1}`))
	f.Add([]byte(`{"codebook": "trellis", "bits": 2.5, "tensors": [{"match": "down_proj", "bits": 1e9}]}`))
	tinyModel := modeltest.Open(f, tiny)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecipe(data)
		if err != nil {
			return
		}
		if strings.HasPrefix(r.Default.Codebook, filePrefix) {
			return // whatever file a fuzzer may name
		}
		for _, rule := range r.Rules {
			if strings.HasPrefix(rule.Format.Codebook, filePrefix) {
				return
			}
			if rule.Match == nil {
				t.Fatal("a rule without a pattern")
			}
		}
		file, err := r.File()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseRecipe(file)
		if d := cmp.Diff(fmt.Sprint(r), fmt.Sprint(again)); err != nil || d != "" {
			t.Errorf("written as %s, error %v; -, read again +:\n%s", file, err, d)
		}
		p, err := NewPlan(tinyModel, r)
		if err != nil {
			return
		}
		if tot := p.Totals(); tot.Quantized == 0 || tot.BytesOut <= 0 {
			t.Fatalf("a plan of %+v", tot)
		}
	})
}
