package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
)

// word is a flag that takes one of a few words. What is none of them is refused
// before any work, and completion offers them.
type word struct {
	value *string
	names []string
	also  string // what else begins like this is taken, if not ""
	// meant, if set, returns what another word stands for, "" if nothing.
	meant func(string) (string, error)
}

// newTarget returns the flag for one of the targets of export, by its name or that of a program that opens nothing else.
func newTarget(value *string, names []string) *word {
	w := newWord(value, "", names...)
	w.meant = export.Meant
	return w
}

// newWord returns the flag for a variable, which it sets to the default; that
// may be "" where the choice is left open.
func newWord(value *string, initial string, names ...string) *word {
	*value = initial
	return &word{value: value, names: names}
}

func (w *word) String() string {
	if w.value == nil {
		return "" // as pflag's zero value
	}
	return *w.value
}

// Type names the flag's value in help texts.
func (w *word) Type() string { return "NAME" }

// Set implements pflag.Value.
func (w *word) Set(s string) error {
	if w.meant != nil {
		meant, err := w.meant(s)
		if err != nil {
			return err
		}
		s = cmp.Or(meant, s)
	}
	if !slices.Contains(w.names, s) && (w.also == "" || !strings.HasPrefix(s, w.also) || s == w.also) {
		names := w.names
		if w.also != "" {
			names = append(slices.Clone(names), w.also+"…")
		}
		return errors.New("want " + alternatives(names))
	}
	*w.value = s
	return nil
}

// alternatives joins words as in "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// The largest numbers that flags take: far above what makes sense anywhere, and
// so small that no sum or size made of them overflows.
const (
	maxThreads = 1024
	maxRounds  = 1000    // of a quantizer
	maxWindows = 1 << 24 // and steps and passes
	maxContext = 1 << 24 // tokens
	maxRows    = 1 << 16 // of X
)

// number is a flag that takes a whole number of a range.
type number struct {
	value       *int
	least, most int
}

// newNumber returns the flag for a variable, which it sets to the default; that
// may be 0 where the number is left open.
func newNumber(value *int, initial, least, most int) *number {
	*value = initial
	return &number{value, least, most}
}

func (n *number) String() string {
	if n.value == nil {
		return "0" // as pflag's zero value
	}
	return strconv.Itoa(*n.value)
}

// Type names the flag's value in help texts.
func (n *number) Type() string { return "int" }

// Set implements pflag.Value.
func (n *number) Set(s string) error {
	v, err := strconv.Atoi(s)
	if err == nil && v >= n.least && v <= n.most {
		*n.value = v
		return nil
	}
	return fmt.Errorf("want a whole number, %d to %d", n.least, n.most)
}

// gpuList is a flag that takes the numbers of GPUs, each once.
type gpuList []int

// maxGPU is far above what a machine has.
const maxGPU = 1023

func (l *gpuList) String() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint([]int(*l)), "[]"), " ", ",")
}

// Type names the flag's value in help texts.
func (l *gpuList) Type() string { return "LIST" }

// Set implements pflag.Value.
func (l *gpuList) Set(s string) error {
	var all []int
	for field := range strings.SplitSeq(s, ",") {
		v, err := strconv.Atoi(field)
		if err != nil || v < 0 || v > maxGPU {
			return errors.New("want numbers of GPUs, as in 0,1")
		}
		if slices.Contains(all, v) {
			return fmt.Errorf("GPU %d is named twice", v)
		}
		all = append(all, v)
	}
	*l = all
	return nil
}

// width is a flag that takes the bits of a code, of which some kinds of weights have half ones.
type width weight.Spec

func (w *width) String() string { return weight.Spec(*w).Width() }

// Type names the flag's value in help texts.
func (w *width) Type() string { return "width" }

// Set implements pflag.Value.
func (w *width) Set(s string) error {
	least, most := quantize.Widths()
	bits, half, err := weight.ParseWidth(s)
	if err != nil || bits < least || bits > most || half && bits == most {
		return fmt.Errorf("want a number, %d to %d, or half a bit more", least, most)
	}
	w.Bits, w.Half = bits, half
	return nil
}

// usage makes a mistake in the command line of what its format names.
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// flagError says what is wrong with a flag, and which one may have been meant.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		name := unknown.GetSpecifiedName()
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		err = usage("unknown flag --%s", name)
		if hint := suggestion("--"+name, names); hint != "" {
			return hintError{err, hint}
		}
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		reason := invalid.Unwrap()
		switch f.Value.Type() {
		case "bool":
			if _, ok := f.Value.(*coverage); !ok {
				reason = errors.New("want true or false")
			}
		case "uint64":
			reason = errors.New("want a whole number, at least 0")
		case "int":
			if _, ok := f.Value.(*number); !ok {
				reason = errors.New("want a whole number")
			}
		case "float64":
			reason = errors.New("want a number")
		}
		err = usage("--%s %q: %w", f.Name, invalid.GetValue(), reason)
		if w, ok := f.Value.(*word); ok {
			if hint := suggestion(invalid.GetValue(), w.names); hint != "" {
				return hintError{err, hint}
			}
		}
	default:
		err = usageError{err}
	}
	return hintError{err, c.CommandPath() + " --help lists the flags"}
}

// checkLine refuses what no command has a use for: arguments and values that are
// empty, as those of a shell's variable that is not set.
func checkLine(c *cobra.Command, args []string) error {
	if slices.Contains(args, "") {
		return usage("%s: an argument is empty", c.Name())
	}
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if s, ok := f.Value.(pflag.SliceValue); ok {
			values = s.GetSlice()
		}
		if err == nil && (len(values) == 0 || slices.Contains(values, "")) {
			err = usage("--%s is empty", f.Name)
		}
	})
	return err
}

// suggestion asks whether a name near to an unknown one was meant; it is "" where
// none is near.
func suggestion(unknown string, names []string) string {
	best, least := "", 3 // edits that a slip of the hand takes are fewer
	for _, name := range names {
		d := distance(unknown, name)
		// What is half of a name or more, or has that and an end of its own.
		a, b := strings.TrimLeft(unknown, "-"), strings.TrimLeft(name, "-")
		if a != "" && (strings.HasPrefix(b, a) && 2*len(a) >= len(b) || strings.HasPrefix(a, b)) {
			d = 1
		}
		if d < least && d < len(b) {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// distance is the number of letters to insert, delete or replace that makes one
// word of the other, where case does not count.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1) // to the beginnings of b from one of a
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// completeFlags offers the values of every flag of a command, by what its help
// says that it takes.
func completeFlags(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.NoFileCompletions
		name, _ := pflag.UnquoteUsage(f)
		w, isWord := f.Value.(*word)
		switch {
		case isWord:
			complete = cobra.FixedCompletions(w.names, cobra.ShellCompDirectiveNoFileComp)
		case name == "FILE" || name == "LIB":
			return // what cobra offers by itself
		case name == "FOLDER" || name == "MODEL":
			complete = completeFolders
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, complete) // an error would be that there is no such flag
	})
}

func completeFolders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// folders offers folders for the first n arguments.
func folders(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}
