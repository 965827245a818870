package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rivo/uniseg"
	"golang.org/x/term"

	"github.com/lutq/lutq/formats/input"
)

// tableShape says how a table gives way to a terminal that is too narrow for it.
type tableShape struct {
	right bool     // cells stand to the right of their columns
	names []string // columns of names, which are folded in the middle first
	drop  []string // columns that are left out then, the first the first
}

// The columns that a name has at least, more where it would be taken for another one; and when nothing else is left.
const (
	foldedName = 12
	leastName  = 6
)

// gap is the space between columns.
const gap = 2

// terminalColumns returns the width of the terminal that w is, or that COLUMNS has it be; 0 where it is none. What is no file
// may tell its own.
func terminalColumns(w io.Writer) int {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	if t, ok := w.(interface{ Columns() int }); ok {
		return t.Columns()
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// table prints aligned columns with a header; rows are written tab-separated. Names from a
// file, which may hold a tab, go through [input.Name] or [input.Printable].
func (u *ui) table(shape tableShape, print func(w io.Writer)) error {
	var text bytes.Buffer
	print(&text)
	var rows [][]string
	for line := range strings.Lines(text.String()) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return u.grid(shape, rows)
}

// printCells prints a table as one of the formats table, md or csv say.
func (u *ui) printCells(format string, shape tableShape, header []string, cells [][]string) error {
	switch format {
	case "csv":
		w := csv.NewWriter(u.stdout)
		if err := w.Write(header); err != nil {
			return err
		}
		return w.WriteAll(cells)
	case "md":
		to := visible{u.stdout}
		fmt.Fprintf(to, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
		for _, row := range cells {
			line := "|"
			for _, cell := range row {
				line += " " + strings.ReplaceAll(cell, "|", `\|`) + " |"
			}
			fmt.Fprintln(to, line)
		}
		return nil
	}
	return u.grid(shape, append([][]string{header}, cells...))
}

// facts prints lines of a name, a tab and what there is to say, which goes on in the next line where a terminal is too narrow.
func (u *ui) facts(print func(w io.Writer)) error {
	var text bytes.Buffer
	print(&text)
	if u.columns == 0 {
		return aligned(visible{u.stdout}, 0, text.Bytes())
	}
	width := 0
	for line := range strings.Lines(text.String()) {
		name, _, _ := strings.Cut(line, "\t")
		width = max(width, uniseg.StringWidth(name)+gap)
	}
	var folded bytes.Buffer
	for line := range strings.Lines(text.String()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		for _, part := range wrap(input.Printable(value), max(u.columns-width, leastName)) {
			fmt.Fprintf(&folded, "%s\t%s\n", name, part)
			name = ""
		}
	}
	return aligned(visible{u.stdout}, 0, folded.Bytes())
}

// aligned prints tab-separated cells in columns.
func aligned(to io.Writer, flags uint, text []byte) error {
	w := tabwriter.NewWriter(to, 0, 0, gap, ' ', flags)
	if _, err := w.Write(text); err != nil {
		return err
	}
	return w.Flush()
}

// grid prints cells in columns, the first row naming them: all of each unless that is too wide for the terminal. Where it is
// with nothing left to leave out, each row becomes a block of lines.
func (u *ui) grid(shape tableShape, rows [][]string) error {
	left := []string(nil)
	if u.columns > 0 && len(rows) > 0 {
		for _, row := range rows {
			for i := range row {
				row[i] = input.Printable(row[i])
			}
		}
		fitted, without, width := shape.fit(rows, u.columns)
		if width > u.columns {
			return u.blocks(rows)
		}
		rows, left = fitted, without
	}
	flags, end := uint(0), ""
	if shape.right {
		flags, end = tabwriter.AlignRight, "\t"
	}
	var text bytes.Buffer
	for _, row := range rows {
		text.WriteString(strings.Join(row, "\t") + end + "\n")
	}
	if err := aligned(visible{u.stdout}, flags, text.Bytes()); err != nil || len(left) == 0 {
		return err
	}
	return u.printLine("columns left out: %s; --json or a wider terminal shows them", strings.Join(left, ", "))
}

// blocks prints each row as lines of a column's name and what the row has there, which stands below it where that leaves too
// little room beside it, and an empty line between rows.
func (u *ui) blocks(rows [][]string) error {
	const leastBeside = 16
	names := 0
	for _, name := range rows[0] {
		names = max(names, uniseg.StringWidth(name)+gap)
	}
	below := u.columns-names < leastBeside
	for i, row := range rows[1:] {
		var text bytes.Buffer
		for j, cell := range row {
			switch {
			case j >= len(rows[0]) || cell == "":
			case below:
				fmt.Fprintf(&text, "%s\n", strings.Join(wrap(rows[0][j]+":", u.columns), "\n"))
				for _, line := range wrap(cell, max(u.columns-gap, leastName)) {
					fmt.Fprintf(&text, "%*s%s\n", gap, "", line)
				}
			default:
				fmt.Fprintf(&text, "%s\t%s\n", rows[0][j], cell)
			}
		}
		if i > 0 {
			fmt.Fprintln(u.stdout)
		}
		var err error
		if below {
			_, err = u.stdout.Write(text.Bytes())
		} else {
			err = u.facts(func(w io.Writer) { _, _ = w.Write(text.Bytes()) }) // to memory
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fit returns the cells for a terminal of so many columns, the names of what is left out, and how wide they are: wider than
// that where it does not suffice.
func (s *tableShape) fit(rows [][]string, columns int) (fitted [][]string, left []string, width int) {
	header := rows[0]
	shown, full, folded := make([]bool, len(header)), make([]int, len(header)), make([]int, len(header))
	for i, name := range header {
		shown[i], full[i] = true, columnWidth(rows, i)
		if folded[i] = full[i]; slices.Contains(s.names, name) {
			folded[i] = foldedWidth(rows, i, full[i])
		}
	}
	for _, name := range s.drop {
		if s.width(folded, shown) <= columns {
			break
		}
		if i := slices.Index(header, name); i >= 0 {
			shown[i] = false
			left = append(left, name)
		}
	}
	// What was left out before something wider may have room again.
	for i := len(left) - 1; i >= 0; i-- {
		at := slices.Index(header, left[i])
		if shown[at] = true; s.width(folded, shown) <= columns {
			left = slices.Delete(left, i, i+1)
		} else {
			shown[at] = false
		}
	}
	for _, least := range [][]int{folded, slices.Repeat([]int{leastName}, len(header))} {
		for s.width(full, shown) > columns {
			widest := -1
			for i, name := range header {
				if shown[i] && slices.Contains(s.names, name) && full[i] > least[i] && (widest < 0 || full[i] > full[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			full[widest]--
		}
	}
	for _, row := range rows {
		var line []string
		for i, cell := range row {
			if i < len(shown) && shown[i] {
				line = append(line, foldMiddle(cell, full[i]))
			}
		}
		fitted = append(fitted, line)
	}
	return fitted, left, s.width(full, shown)
}

// width returns the columns of a terminal that some columns of a table take.
func (s *tableShape) width(widths []int, shown []bool) int {
	total := 0
	for i, w := range widths {
		if shown[i] {
			total += w + gap
		}
	}
	if !s.right { // nothing stands before the first
		total -= gap
	}
	return total
}

// foldedWidth returns how many columns a column of names of so many at most has at least for all that differ to do so folded.
func foldedWidth(rows [][]string, i, full int) int {
	different := func(columns int) int {
		names := make(map[string]bool)
		for _, row := range rows {
			if i < len(row) {
				names[foldMiddle(row[i], columns)] = true
			}
		}
		return len(names)
	}
	if full <= foldedName {
		return full
	}
	all := different(full)
	return foldedName + sort.Search(full-foldedName, func(more int) bool { return different(foldedName+more) == all })
}

// columnWidth returns that of a column's widest cell.
func columnWidth(rows [][]string, i int) int {
	width := 0
	for _, row := range rows {
		if i < len(row) {
			width = max(width, uniseg.StringWidth(row[i]))
		}
	}
	return width
}

// prose returns where lines of text are printed, which a terminal has broken at spaces.
func (u *ui) prose() io.Writer {
	if u.columns == 0 {
		return u.stdout
	}
	return wrapping{u}
}

type wrapping struct{ *ui }

func (w wrapping) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		text, end := strings.CutSuffix(line, "\n")
		out := strings.Join(wrap(text, w.columns), "\n")
		if end {
			out += "\n"
		}
		if _, err := io.WriteString(w.stdout, out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// foldMiddle shortens a name to so many columns by leaving out its middle. The end tells more than the beginning and keeps more.
func foldMiddle(s string, columns int) string {
	if uniseg.StringWidth(s) <= columns {
		return s
	}
	begin := cutEnd(s, min((columns-1)/3, 5))
	return begin + cutBegin(s, columns-uniseg.StringWidth(begin))
}

// wrap breaks a line at its spaces into lines of so many columns, and words that are longer where they have to be.
func wrap(s string, columns int) []string {
	var lines []string
	for uniseg.StringWidth(s) > columns {
		line := cutEnd(s, columns)
		if line == "" {
			break
		}
		if space := strings.LastIndexByte(line, ' '); s[len(line)] != ' ' && strings.TrimSpace(line[:space+1]) != "" {
			line = line[:space]
		}
		lines = append(lines, strings.TrimRight(line, " "))
		s = strings.TrimLeft(s[len(line):], " ")
	}
	return append(lines, s)
}
