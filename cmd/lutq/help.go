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
		Long: `Help prints what "lutq COMMAND --help" prints, or a topic that is no command's.
With --man it writes a manual page for every command to a folder instead, where
"man -M" or a folder man1 of your MANPATH finds them:

  lutq help --man ~/.local/share/man/man1

Pages that lutq wrote before are replaced. Any other file in a page's place is
an error, and then nothing is written.`,
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
	c.Flags().StringVar(&man, "man", "", "write manual pages to this `FOLDER`, which is made if need be")
	return c
}

func newCompletionCommand(u *ui) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script that completes lutq's command lines",
		Long: `Completion prints a script for the shell bash, zsh, fish or powershell, which
then completes commands, flags, their values and folders. For one session:

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

// flagGroup marks a flag as one of a group, whose title it names.
const flagGroup = "group"

// setGroup puts flags under a title of their own in the help.
func setGroup(f *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		_ = f.SetAnnotation(name, flagGroup, []string{title}) // an error would be that there is no such flag
	}
}

// printUsage prints the part of a command's help that follows its text: how it is
// called, what there is below it, and its flags, in groups.
func printUsage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", c.UseLine())
	list := func(title string, belongs func(*cobra.Command) bool) {
		first := title
		for _, sub := range c.Commands() {
			if belongs(sub) {
				fmt.Fprintf(&b, "%s  %-12s %s\n", first, sub.Name(), sub.Short)
				first = ""
			}
		}
	}
	list("\nCommands:\n", func(sub *cobra.Command) bool { return sub.IsAvailableCommand() || sub.Name() == "help" })
	list("\nTopics:\n", (*cobra.Command).IsAdditionalHelpTopicCommand)

	titles := []string{"Flags"}
	groups := make(map[string]*pflag.FlagSet)
	add := func(f *pflag.Flag) {
		title := titles[0]
		if t := f.Annotations[flagGroup]; len(t) > 0 {
			title = t[0]
		}
		g := groups[title]
		if g == nil {
			g = pflag.NewFlagSet(title, pflag.ContinueOnError)
			g.SortFlags = false
			groups[title] = g
			if title != titles[0] {
				titles = append(titles, title)
			}
		}
		g.AddFlag(f)
	}
	c.LocalFlags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	for _, title := range titles {
		if g := groups[title]; g != nil {
			fmt.Fprintf(&b, "\n%s:\n%s", title, g.FlagUsagesWrapped(helpWidth))
		}
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\"%s help COMMAND\" tells more about one.\n", c.CommandPath())
	}
	_, err := fmt.Fprint(c.OutOrStderr(), b.String())
	return err
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
		c.Long = markdown(c.Long)
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
