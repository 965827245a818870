package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/hub"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/quantize"
)

// nameSource tells a plan what its model is called on the hub, if it is from there.
func nameSource(p *quantize.Plan, m *source.Model) { p.Repo, p.Commit = hub.At(m.Path()) }

// addMeasured adds an evaluation to the card of the container that it is of.
func addMeasured(out string, r *evalReport) error {
	res := r.results[0]
	return quantize.Measured(out, card.Measured{
		Text: r.text, Protocol: string(res.Protocol), Windows: res.Windows, Context: res.Context,
		PPL: res.PPL, ReferencePPL: res.ReferencePPL, KL: res.KLMean, KLCI: res.KLMeanCI, Top1: res.Top1, Top1CI: res.Top1CI,
	})
}

// ending says what opens a container that was made of a model, and which commands come next.
func (u *ui) ending(model, out string, evaluated bool) error {
	if u.quiet {
		return nil
	}
	m, err := lutq.Open(out)
	if err != nil {
		return err
	}
	defer m.Close()
	o, err := export.OpensIn(m)
	if err != nil {
		return err
	}
	var in []string
	if o.Family {
		in = append(in, "lutq")
	}
	in = append(in, "transformers 5 (trust_remote_code=True)")
	if o.VLLM {
		in = append(in, "vLLM (plugin in formats/lutq)")
	}
	others := "quantize --for NAME makes what others open"
	if len(o.Exports) > 0 {
		others = "by export: " + strings.Join(o.Exports, ", ")
	}
	fmt.Fprintln(u.stdout)
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "opens in\t%s; %s\n", strings.Join(in, ", "), others)
		if !o.Family {
			return
		}
		fmt.Fprintf(w, "next\tlutq generate %s %s\n", shellWord(out), o.Prompt())
		if !evaluated {
			fmt.Fprintf(w, "\tlutq eval-ppl %s --against %s --text FILE\n", shellWord(out), shellWord(model))
		}
	})
}

// shellWord writes a word as a shell reads it back.
func shellWord(word string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
