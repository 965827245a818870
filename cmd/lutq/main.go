// Lutq shrinks large language models. It stores the weights of a model's linear layers as codes of 2 to 5 bits that
// choose from a table, measures what that does to the model, runs the result, and writes it for other programs. "lutq
// help" lists the commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitCheck       = 3 // a check did not hold
	exitInterrupted = 130
)

// usageError is a mistake in the command line itself.
type usageError struct{ error }

// checkError means that the work was done and that something it checked does
// not hold.
type checkError struct{ error }

// hintError carries advice beside an error.
type hintError struct {
	error
	hint string
}

func (e usageError) Unwrap() error { return e.error }
func (e checkError) Unwrap() error { return e.error }
func (e hintError) Unwrap() error  { return e.error }
func (e hintError) Hint() string   { return e.hint }

// run carries out a command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := interruptible(context.Background(), stderr)
	defer stop()
	out := &output{w: stdout}
	root := newRoot(stdin, out, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("standard output: %w", out.err)
	}
	if err == nil {
		return exitDone
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, interrupted)
		printHint(stderr, err)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "lutq: %s\n", input.Message(err.Error()))
	printHint(stderr, err)
	var usage usageError
	var check checkError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &check):
		return exitCheck
	}
	return exitFailed
}

func printHint(w io.Writer, err error) {
	// Errors of packages that know what to do about them say it themselves.
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		fmt.Fprintf(w, "hint: %s\n", input.Message(h.Hint()))
	}
}

const interrupted = "lutq: interrupted"

// interrupts says who takes Ctrl-C: a command that goes on after it, or else nobody, and the run ends.
type interrupts struct {
	mu   sync.Mutex
	take func() bool
}

type interruptsKey struct{}

// taken offers an interrupt to who takes them, and reports whether it was taken.
func (i *interrupts) taken() bool {
	i.mu.Lock()
	take := i.take
	i.mu.Unlock()
	return take != nil && take()
}

// onInterrupt has take be asked whether it takes an interrupt of a run, until restore is called.
func onInterrupt(ctx context.Context, take func() bool) (restore func()) {
	i, ok := ctx.Value(interruptsKey{}).(*interrupts)
	if !ok {
		return func() {}
	}
	set := func(take func() bool) {
		i.mu.Lock()
		i.take = take
		i.mu.Unlock()
	}
	set(take)
	return func() { set(nil) }
}

// interruptible returns a context that the first signal to end cancels, so
// that work comes to a good end. The second ends the process, since what
// blocks may never look at a context.
func interruptible(parent context.Context, stderr io.Writer) (ctx context.Context, stop func()) {
	taker := &interrupts{}
	ctx, cancel := context.WithCancel(context.WithValue(parent, interruptsKey{}, taker))
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for ending := false; ; {
			select {
			case s := <-signals:
				if s == os.Interrupt && !ending && taker.taken() {
					continue
				}
			case <-done:
				return
			}
			if ending {
				fmt.Fprintln(stderr, interrupted)
				os.Exit(exitInterrupted)
			}
			ending = true
			cancel()
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// output is the standard output, with the first error of writing to it: results
// that nobody got are a failure, though whoever prints them need not look.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// newRoot returns the whole command tree.
func newRoot(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	u := &ui{stdin: stdin, stdout: stdout, stderr: stderr, columns: terminalColumns(stdout)}
	root := &cobra.Command{
		Use:   "lutq",
		Short: "Quantize language models through lookup tables",
		Long: `Lutq shrinks large language models. It stores each weight of a model's linear
layers as a code of 2 to 5 bits, which chooses a number from a small table. It
measures what that does to the model, runs the result, and writes it in the
formats of other programs.

  lutq quantize MODEL OUT --bits 4                make a smaller copy of a model
  lutq eval-ppl OUT --text FILE --against MODEL   measure it beside the original
  lutq generate OUT --prompt 'Once upon a time'   let it write
  lutq chat OUT --beside MODEL                    talk to both, side by side
  lutq inspect OUT                                list what is stored, and how
  lutq verify OUT --against MODEL                 check every tensor

MODEL is a folder with config.json, tokenizer.json and safetensors files, a GGUF
file, or the name of a model on the Hugging Face hub, as Qwen/Qwen3-0.6B ("lutq
help names").

Exit codes: 0 done, 1 failed, 2 bad usage, 3 a check did not hold,
130 interrupted.`,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // there is an own one
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(c, args[0])
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(u.printHelp)
	root.AddGroup(&cobra.Group{ID: researchTitle})
	root.PersistentFlags().BoolVar(&u.all, allFlag, false, "with --help: all flags, and more text")
	root.PersistentFlags().BoolVarP(&u.quiet, "quiet", "q", false, "show no progress")
	root.AddCommand(
		newQuantizeCommand(u),
		newInspectCommand(u),
		newVerifyCommand(u),
		newTokenizeCommand(u),
		newRepackCommand(u),
		newTorchKernelsCommand(u),
		newExportCommand(u),
		newImportCommand(u),
		newBenchCommand(u),
		newEvalCommand(u),
		newReportCommand(u),
		newSweepCommand(u),
		newEvalTasksCommand(u),
		newGenerateCommand(u),
		newChatCommand(u),
		newDSECommand(u),
		newLMMACommand(u),
		newDoctorCommand(u),
		newCompletionCommand(u),
	)
	root.AddCommand(newTopics()...)
	root.SetHelpCommand(newHelpCommand(u))
	root.InitDefaultHelpCmd() // adds it
	for _, c := range root.Commands() {
		c.Args, c.RunE = usageArgs(c.Args), u.closing(c.RunE)
		c.Flags().SortFlags = false // but in the order of the source
		u.addOffline(c)
		completeFlags(c)
	}
	return root
}

// unknownCommand is the error for a command or topic that is none.
func unknownCommand(root *cobra.Command, name string) error {
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	err := usage("unknown command %q", name)
	if hint := suggestion(name, names); hint != "" {
		return hintError{err, hint}
	}
	return hintError{err, "lutq help lists the commands"}
}

// usageArgs makes what is wrong with a command's arguments a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if check != nil {
			if err := check(c, args); err != nil {
				return badArgs(c, err)
			}
		}
		if c.Name() != "help" && c.Flags().Changed(allFlag) {
			return usage("--%s goes with --help", allFlag)
		}
		return checkLine(c, args)
	}
}

// badArgs is the error of arguments that a command does not take.
func badArgs(c *cobra.Command, err error) error {
	return hintError{usage("%s: %w", c.Name(), err), "usage: " + c.UseLine()}
}

// version returns the version that the binary was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
