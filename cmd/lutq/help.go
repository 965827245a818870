package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/lutq/lutq/formats/input"
)

// withLimits adds to a help text how large the files may be that the command reads.
func withLimits(text string, kinds ...input.Kind) string {
	limits := make([]string, len(kinds))
	for i, k := range kinds {
		limits[i] = fmt.Sprintf("%s %s", k, formatBytes(k.Limit()))
	}
	line := "\n\nFiles that it reads whole may have at most:"
	for word := range strings.FieldsSeq(strings.Join(limits, ", ") + ".") {
		if len(line)+1+len(word) > 80 {
			text, line = text+line+"\n", word
		} else {
			line += " " + word
		}
	}
	return text + line
}

func newHelpCommand(u *ui) *cobra.Command {
	var man string
	c := &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Tell about a command or a topic",
		Long: `Help prints the help of a command, as "lutq COMMAND --help" does, or a topic.
Where a command has more flags or text than fit a screen, --all prints all.

With --man it writes a manual page for every command to a folder. "man -M" finds
the pages there, and "man" does if the folder is a man1 of your MANPATH:

  lutq help --man ~/.local/share/man/man1

Pages that lutq wrote before are replaced. Any other file in the place of a page
is an error; then nothing is written.`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, sub := range c.Root().Commands() {
				if len(args) == 0 && !sub.Hidden {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case man != "" && len(args) > 0:
				return usage("--man writes all pages: it takes no command")
			case man != "":
				return writeManual(newRoot(u.stdin, u.stdout, u.stderr), man)
			case len(args) == 0:
				return c.Root().Help()
			}
			about, _, err := c.Root().Find(args)
			if err != nil || about == c.Root() {
				return unknownCommand(c.Root(), args[0])
			}
			about.InitDefaultHelpFlag() // which its help lists
			return about.Help()
		},
	}
	c.Flags().StringVar(&man, "man", "", "write manual pages to `FOLDER`, which is made if need be")
	return c
}

func newCompletionCommand(u *ui) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script that completes lutq's command lines",
		Long: `Completion prints a script for bash, zsh, fish or powershell. With it the shell
completes commands, flags, their values and folders. For one session:

  source <(lutq completion bash)
  lutq completion fish | source

For all of them, put the script where the shell looks:

  lutq completion bash > ~/.local/share/bash-completion/completions/lutq
  lutq completion zsh > "${fpath[1]}/_lutq"
  lutq completion fish > ~/.config/fish/completions/lutq.fish`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: shells,
		RunE: func(c *cobra.Command, args []string) error {
			switch root := c.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(u.stdout, true)
			case "zsh":
				return root.GenZshCompletion(u.stdout)
			case "fish":
				return root.GenFishCompletion(u.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(u.stdout)
			}
			err := usage("unknown shell %q: want %s", args[0], alternatives(shells))
			if hint := suggestion(args[0], shells); hint != "" {
				return hintError{err, hint}
			}
			return err
		},
	}
}

// helpWidth is the width that help texts are written for.
const helpWidth = 80

// allFlag has help tell everything.
const allFlag = "all"

// Help has two views. "lutq COMMAND --help" fits a screen: it has what most need. With --all it has every flag of the
// command and the rest of its text.
const (
	flagGroup = "group" // the annotation of a flag: the title that it stands under
	flagLater = "later" // the annotation of a flag that only the second view lists
	moreText  = "more"  // the annotation of a command: the text that only the second view has
)

// researchTitle is the title of commands, topics and flags that answer questions of research, which no model needs.
const researchTitle = "Research"

// setGroup puts flags under a title of their own in the help.
func setGroup(f *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		_ = f.SetAnnotation(name, flagGroup, []string{title}) // an error would be that there is no such flag
	}
}

// setLater leaves flags out of the first view of the help.
func setLater(f *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = f.SetAnnotation(name, flagLater, []string{"true"}) // as in setGroup
	}
}

// setResearch puts flags under the title of research, which the first view of the help leaves out.
func setResearch(f *pflag.FlagSet, names ...string) {
	setGroup(f, researchTitle, names...)
	setLater(f, names...)
}

// more returns the annotations of a command whose help has more text in its second view.
func more(text string) map[string]string { return map[string]string{moreText: text} }

// printHelp prints a command's help, or a topic.
func (u *ui) printHelp(c *cobra.Command, _ []string) {
	var b strings.Builder
	fmt.Fprintln(&b, strings.TrimSpace(c.Long))
	if text := c.Annotations[moreText]; u.all && text != "" {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	if c.Runnable() {
		fmt.Fprintf(&b, "\nUsage:\n  %s\n", c.UseLine())
		listCommands(&b, c)
		u.listFlags(&b, c)
	}
	fmt.Fprint(c.OutOrStdout(), b.String()) // which keeps its error
}

// listCommands lists what there is below a command: commands, topics, and those of research.
func listCommands(w io.Writer, c *cobra.Command) {
	list := func(title string, belongs func(*cobra.Command) bool) {
		first := "\n" + title + ":\n"
		for _, sub := range c.Commands() {
			if belongs(sub) {
				fmt.Fprintf(w, "%s  %-12s %s\n", first, sub.Name(), sub.Short)
				first = ""
			}
		}
	}
	research := func(sub *cobra.Command) bool { return sub.GroupID == researchTitle }
	topic := (*cobra.Command).IsAdditionalHelpTopicCommand
	list("Commands", func(sub *cobra.Command) bool {
		return !research(sub) && (sub.IsAvailableCommand() || sub.Name() == "help")
	})
	list("Topics", func(sub *cobra.Command) bool { return !research(sub) && topic(sub) })
	list(researchTitle, research)
}

// listFlags lists the flags of a command in their groups, those of no group in the last one.
func (u *ui) listFlags(w io.Writer, c *cobra.Command) {
	var titles []string
	flags := make(map[string]*pflag.FlagSet)
	var rest []*pflag.Flag
	later := 0
	add := func(title string, f *pflag.Flag) {
		if flags[title] == nil {
			flags[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			flags[title].SortFlags = false
			titles = append(titles, title)
		}
		flags[title].AddFlag(f)
	}
	sort := func(f *pflag.Flag) {
		group := f.Annotations[flagGroup]
		switch {
		case f.Annotations[flagLater] != nil && !u.all:
			later++
		case f.Name == allFlag && c.Annotations[moreText] == "": // there is no more
		case len(group) > 0:
			add(group[0], f)
		default:
			rest = append(rest, f)
		}
	}
	c.LocalFlags().VisitAll(sort)
	c.InheritedFlags().VisitAll(sort)
	last := "Flags"
	if n := len(titles); n > 0 {
		last = titles[n-1]
	}
	for _, f := range rest {
		add(last, f)
	}
	for _, title := range titles {
		if flags[title] != nil {
			fmt.Fprintf(w, "\n%s:\n%s", title, flags[title].FlagUsagesWrapped(helpWidth))
		}
	}
	switch {
	case c.HasAvailableSubCommands():
		fmt.Fprintf(w, "\n\"%s help COMMAND\" tells more about one.\n", c.CommandPath())
	case later > 0:
		fmt.Fprintf(w, "\n\"%s --help --all\" tells more, and lists %d more flags.\n", c.CommandPath(), later)
	case c.Annotations[moreText] != "" && !u.all:
		fmt.Fprintf(w, "\n\"%s --help --all\" tells more.\n", c.CommandPath())
	}
}

// manualMark is the first line of every page that lutq writes.
const manualMark = `.\" Written by lutq help --man, which replaces it.` + "\n"

// writeManual writes a page for every command to a folder, all or none. The
// commands' texts are changed.
func writeManual(root *cobra.Command, dir string) error {
	root.DisableAutoGenTag = true
	pages := make(map[string][]byte) // by file
	for _, c := range append([]*cobra.Command{root}, root.Commands()...) {
		if c.IsAdditionalHelpTopicCommand() || c.Hidden {
			continue
		}
		c.Long = markdown(strings.TrimSpace(c.Long + "\n\n" + c.Annotations[moreText]))
		for _, t := range topics() {
			if t.page == c.Name() {
				c.Long += "\n\n# " + strings.ToUpper(t.name) + "\n\n" + markdown(t.long)
			}
		}
		page := bytes.NewBufferString(manualMark)
		if err := doc.GenMan(c, &doc.GenManHeader{Source: "lutq " + version(), Manual: "lutq"}, page); err != nil {
			return err
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		pages[filepath.Join(dir, name)] = page.Bytes()
	}
	for path := range pages {
		if err := checkPage(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for path, page := range pages {
		if err := os.WriteFile(path, page, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// checkPage refuses to replace what lutq did not write.
func checkPage(path string) error {
	info, err := os.Lstat(path) // a link is none of lutq's
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a file that lutq wrote", path)
	}
	old, err := input.Open(path)
	if err != nil {
		return err
	}
	defer old.Close()
	begin := make([]byte, len(manualMark))
	if _, err := io.ReadFull(old, begin); err != nil || string(begin) != manualMark {
		return fmt.Errorf("%s: not a file that lutq wrote", path)
	}
	return nil
}

// markdown makes a help text what the generator of manual pages takes: lines that
// are set off stay as they are, others are paragraphs.
func markdown(text string) string {
	var b strings.Builder
	wasCode := false
	for line := range strings.Lines(text) {
		code := strings.HasPrefix(line, "  ")
		if code != wasCode && line != "\n" {
			b.WriteString("\n")
			wasCode = code
		}
		if code {
			b.WriteString("    " + strings.TrimPrefix(line, "  "))
			continue
		}
		b.WriteString(strings.NewReplacer("_", `\_`, "*", `\*`, "<", `\<`).Replace(line))
	}
	return b.String()
}
