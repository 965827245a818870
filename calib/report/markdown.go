package report

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strings"
)

// Markdown writes the report as Markdown. picture gives the address of a picture of the report, which it may write
// somewhere; its name is letters, digits and hyphens.
func (r *Report) Markdown(w io.Writer, picture func(p *Picture) (address string, err error)) error {
	m := markdown{picture: picture}
	m.page(newPage(r))
	if m.err != nil {
		return m.err
	}
	_, err := w.Write(m.b.Bytes())
	return err
}

// MarkdownMark begins every report in Markdown.
const MarkdownMark = "<!-- lutq report -->\n"

type markdown struct {
	b       bytes.Buffer
	picture func(p *Picture) (string, error)
	err     error
}

// plain escapes a text that is to stand in Markdown as it is.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune("\\`*_{}[]()#+!|~$", r) {
			b.WriteByte('\\')
		}
		b.WriteString(html.EscapeString(string(r)))
	}
	return b.String()
}

// fenced writes a text as a block of code: the fence is longer than any in it.
func (m *markdown) fenced(s string) {
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	fmt.Fprintf(&m.b, "\n%s\n%s\n%s\n", fence, s, fence)
}

func (m *markdown) table(t *table) {
	if t == nil || len(t.Rows) == 0 {
		return
	}
	head := t.Head
	if head == nil {
		head = make([]field, len(t.Rows[0]))
	}
	row := func(fields []field) {
		for _, f := range fields {
			m.b.WriteString("| " + plain(f.Text) + " ")
		}
		m.b.WriteString("|\n")
	}
	m.b.WriteString("\n")
	row(head)
	for _, f := range head {
		m.b.WriteString("|---")
		if f.Right {
			m.b.WriteString(":")
		}
	}
	m.b.WriteString("|\n")
	for _, fields := range t.Rows {
		row(fields)
	}
}

func (m *markdown) pictures(all ...*Picture) {
	for _, p := range all {
		if m.err != nil || p == nil {
			continue
		}
		address, err := m.picture(p)
		if err != nil {
			m.err = err
			return
		}
		fmt.Fprintf(&m.b, "\n![%s](%s)\n\n%s\n", plain(p.Caption), address, plain(p.Caption))
	}
}

func (m *markdown) page(p *page) {
	fmt.Fprintf(&m.b, "%s# %s\n", MarkdownMark, plain(p.Title))
	if p.Against != "" {
		fmt.Fprintf(&m.b, "\nHeld against %s.\n", plain(p.Against))
	}
	m.b.WriteString("\n")
	for _, f := range p.Key {
		fmt.Fprintf(&m.b, "- %s: **%s**\n", plain(f.What), plain(f.Is))
	}
	for _, name := range p.Ruined {
		fmt.Fprintf(&m.b, "\n**%s is ruined**: few models are of use that far from their original.\n", plain(name))
	}
	for _, t := range p.Texts {
		fmt.Fprintf(&m.b, "\n## On %s\n\n%s\n", plain(t.Name), plain(t.Protocol))
		m.table(t.Table)
		m.pictures(t.Frontier)
		m.table(t.Pairs)
	}
	for _, one := range p.Models {
		fmt.Fprintf(&m.b, "\n## %s\n", plain(one.Name))
		m.table(one.Facts)
		m.pictures(one.Pictures...)
		if one.Layers != nil {
			m.b.WriteString("\n### Layers with the largest errors\n")
			m.table(one.Layers)
		}
		if one.Outliers != nil {
			m.b.WriteString("\n### Outlier columns\n")
			m.table(one.Outliers)
		}
		for _, t := range one.Tokens {
			fmt.Fprintf(&m.b, "\n### Tokens of %s\n", plain(t.Text))
			m.pictures(t.Pictures...)
			m.table(t.Classes)
			m.worst(t.Worst)
		}
		if one.SHA256 != "" {
			fmt.Fprintf(&m.b, "\nSHA-256 of the quantized tensors: %s\n", plain(one.SHA256))
		}
		if one.Command != "" {
			m.fenced(one.Command)
		}
	}
	m.b.WriteString("\n## This page\n")
	m.fenced(p.Command)
}

func (m *markdown) worst(all []worstToken) {
	if len(all) == 0 {
		return
	}
	t := newTable("text", "token", ">KL", ">model", ">original", "the model's", "the original's")
	for _, w := range all {
		chances := [2][]string{}
		for i, of := range [][]struct{ Token, P string }{w.Own, w.Ref} {
			for _, c := range of {
				chances[i] = append(chances[i], c.Token+" "+c.P)
			}
		}
		t.add("…"+w.Before, w.Token, w.KL, w.P, w.Reference, strings.Join(chances[0], ", "), strings.Join(chances[1], ", "))
	}
	m.table(t)
}
