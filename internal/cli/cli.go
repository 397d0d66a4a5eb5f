// Package cli is the command line: it reads flags and files, calls the
// packages that judge, and turns results into tables, JSON and exit codes.
// Only it and the server turn an error into words.
package cli

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/catalog"
)

// Environment is what the command line needs of the machine. Tests replace it.
type Environment struct {
	In       io.Reader
	Out, Err io.Writer
	Now      func() time.Time
	Getenv   func(string) string
	Terminal bool // Out is a terminal
	Width    int  // columns of the terminal
}

// exitCodes are the exit codes of the kinds of faults; others exit with 1.
var exitCodes = map[fault.Kind]int{
	fault.Invalid: 2, fault.NothingFits: 3, fault.OverLimit: 4, fault.Denied: 5, fault.Unreachable: 6, fault.JobFailed: 10,
}

// Main runs a command line and gives the exit code of the process.
func Main(args []string, env Environment) int {
	a := &app{Environment: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	err := root.Execute()
	if err == nil {
		return 0
	}
	if errors.Is(err, errSilent) {
		err = a.failed
	} else {
		a.explain(err)
	}
	if code, ok := exitCodes[fault.KindOf(err)]; ok {
		return code
	}
	return 1
}

// errSilent ends a command whose words are already said; app.failed has the kind.
var errSilent = errors.New("")

// app is one run of the command line.
type app struct {
	Environment
	output string // -o: table, json, csv, or empty
	failed error
}

// quietly ends a command with the exit code of a fault that needs no words.
func (a *app) quietly(kind fault.Kind) error {
	a.failed = fault.New(kind, "")
	return errSilent
}

// explain tells people what went wrong and what to do next.
func (a *app) explain(err error) {
	all := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		all = joined.Unwrap()
	}
	for _, e := range all {
		fmt.Fprintf(a.Err, "destajo: %s\n", e)
		if hint := fault.HintOf(e); hint != "" {
			fmt.Fprintf(a.Err, "  → %s\n", hint)
		}
	}
}

const longHelp = `destajo answers where a GPU job costs least when it is finished, from dated
prices, measured or stated hours and every hidden cost: start-up, disks that
bill while stopped, egress, interruptions and rounding.

Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 nothing fits, 4 over
quota or budget, 5 not allowed, 6 unreachable, 10 the job itself failed.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "destajo",
		Short:         "Where does this job cost least when it is finished?",
		Long:          longHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			var names []string
			for _, s := range c.Commands() {
				names = append(names, s.Name())
			}
			e := fault.New(fault.Invalid, "unknown command %q", args[0])
			if near := fault.Nearest(args[0], names); len(near) > 0 {
				return e.Hint("did you mean `destajo %s`?", near[0])
			}
			return e.Hint("`destajo --help` lists the commands")
		},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fault.New(fault.Invalid, "%v", err).Hint("`%s --help` lists the flags", c.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "", "table, json or csv (default: table on a terminal, else plain rows)")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		switch a.output {
		case "", "table", "json", "csv":
			return nil
		}
		return fault.New(fault.Invalid, "unknown output %q", a.output).Hint("-o takes table, json or csv")
	}
	root.AddGroup(&cobra.Group{ID: "decide", Title: "Decide:"}, &cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "know", Title: "Look up:"}, &cobra.Group{ID: "other", Title: "Other:"})
	root.SetHelpCommandGroupID("other")
	root.AddCommand(a.planCommand(), a.estimateCommand(), a.spotCommand(), a.rentOrBuyCommand(),
		a.runCommand(), a.jobsCommand(), a.jobCommand(), a.logsCommand(), a.stopCommand(), a.machinesCommand(), a.costCommand(), a.sshCommand(), a.portCommand(), a.serveCommand(), a.demoCommand(),
		a.doctorCommand(), a.convertCommand(), a.agentCommand(),
		a.offersCommand(), a.gpusCommand(), a.providersCommand(), a.catalogCommand(),
		a.schemaCommand(), a.docsCommand(), a.versionCommand())
	return root
}

// nothing refuses arguments.
func nothing(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		var names []string
		for _, s := range c.Commands() {
			names = append(names, s.Name())
		}
		return fault.New(fault.Invalid, "unknown command %q for %q", args[0], c.CommandPath()).Hint("it has %s", strings.Join(names, ", "))
	}
	return fault.New(fault.Invalid, "%s takes no arguments, got %q", c.CommandPath(), args[0]).Hint("usage: %s", c.UseLine())
}

// parent makes a command that only holds others.
func parent(c *cobra.Command) *cobra.Command {
	c.Args = nothing
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// exactly is cobra.ExactArgs with a fault that says what is expected.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fault.New(fault.Invalid, "%s takes %s, got %d arguments", c.CommandPath(), what, len(args)).Hint("usage: %s", c.UseLine())
	}
}

// home is the folder of all local state.
func (a *app) home() string {
	if h := a.Getenv("DESTAJO_HOME"); h != "" {
		return h
	}
	h, err := os.UserHomeDir()
	if err != nil {
		h = "."
	}
	return filepath.Join(h, ".destajo")
}

func (a *app) local() *catalog.Local { return catalog.OpenLocal(filepath.Join(a.home(), "catalog")) }

// readFile reads a file that a user named; "-" is standard input.
func (a *app) readFile(path string) ([]byte, error) {
	if path == "-" {
		data, err := io.ReadAll(io.LimitReader(a.In, 1<<30))
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "standard input cannot be read")
		}
		return data, nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fault.New(fault.Invalid, "there is no file %s", path).Hint("check the path; - reads standard input")
	case err != nil:
		return nil, fault.Wrap(fault.Invalid, err, "the file cannot be read")
	case info.IsDir():
		return nil, fault.New(fault.Invalid, "%s is a folder", path).Hint("name a file in it")
	case info.Size() > 1<<30:
		return nil, fault.New(fault.Invalid, "%s has %d bytes", path, info.Size()).Hint("at most 1 GiB is read at once: split it")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the file cannot be read")
	}
	return data, nil
}

// printJSON writes a value as indented JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// listing is a table as any of the outputs.
type listing struct {
	header []string
	right  map[int]bool // columns that are aligned to the right
	rows   [][]string
	foot   []string // notes below the table
	shrink int      // the column that gives way when the table is too wide
}

// tabular says whether listings are shown as tables for people.
func (a *app) tabular() bool { return a.output == "table" || a.output == "" && a.Terminal }

// print writes a listing; data is what JSON shows in its place.
func (a *app) print(l listing, data any) (err error) {
	out, buffer := a.Out, bufio.NewWriter(a.Out) // thousands of rows are not thousands of system calls
	a.Out = buffer
	defer func() {
		a.Out = out
		if flushed := buffer.Flush(); err == nil {
			err = flushed
		}
	}()
	switch a.output {
	case "json":
		return a.printJSON(data)
	case "csv":
		w := csv.NewWriter(a.Out)
		if err := w.Write(l.header); err != nil {
			return err
		}
		if err := w.WriteAll(l.rows); err != nil {
			return err
		}
		a.notes(a.Err, l.foot)
		return nil
	}
	if a.output == "" && !a.Terminal {
		for _, r := range append([][]string{l.header}, l.rows...) {
			fmt.Fprintln(a.Out, strings.Join(r, "\t"))
		}
		a.notes(a.Err, l.foot)
		return nil
	}
	a.table(l)
	a.notes(a.Out, l.foot)
	return nil
}

// notes writes the lines below a table, wrapped to the width.
func (a *app) notes(w io.Writer, lines []string) {
	if len(lines) > 0 && w == a.Out {
		fmt.Fprintln(w)
	}
	for _, l := range lines {
		fmt.Fprintln(w, wrap(l, a.columns()))
	}
}
