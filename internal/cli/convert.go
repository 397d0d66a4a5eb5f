package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
)

func (a *app) convertCommand() *cobra.Command {
	var from, out string
	c := &cobra.Command{
		Use:     "convert FILE",
		GroupID: "other",
		Short:   "Write a SkyPilot or dstack job file as one of ours",
		Long: `Write a job file of SkyPilot or dstack as one of ours, to standard output. Every
field that is not carried over as it stands is named on standard error, with its
line; nothing is left out silently. Exit code 2 when something must be changed
before the job can run: the text says where.`,
		Example: "  destajo convert --from skypilot task.yaml > job.yml\n  destajo convert --from dstack .dstack.yml --out job.yml",
		Args:    exactly(1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := a.readFile(args[0])
			if err != nil {
				return err
			}
			if from == "" {
				return fault.New(fault.Invalid, "of which tool is %s?", args[0]).Hint("add --from skypilot or --from dstack")
			}
			all, fatal := a.convertFile(args[0], data, from, nil) // values of this machine stay out of the file
			if len(all) == 0 {
				return fatal
			}
			if err := a.writeConverted(all, out); err != nil {
				return err
			}
			return fatal
		},
	}
	c.Flags().StringVar(&from, "from", "", "skypilot or dstack")
	c.Flags().StringVar(&out, "out", "", "write to this file, or several jobs into this folder")
	return c
}

// writeConverted writes jobs to standard output, or into a file; several go into
// a folder, each by its name.
func (a *app) writeConverted(all []converted, out string) error {
	if out == "" {
		for i, x := range all {
			if i > 0 {
				fmt.Fprintln(a.Out, "---")
			}
			if _, err := a.Out.Write(x.text); err != nil {
				return err
			}
		}
		if len(all) > 1 {
			fmt.Fprintf(a.Err, "these are %d jobs, and a job file holds one: --out FOLDER writes each to its own\n", len(all))
		}
		return nil
	}
	for _, x := range all {
		path := out
		if len(all) > 1 {
			spec, err := job.Parse("job.yml", x.text)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(out, 0o755); err != nil {
				return fault.Wrap(fault.Invalid, err, "making %s", out)
			}
			path = filepath.Join(out, spec.Name+".yml")
		}
		if err := os.WriteFile(path, x.text, 0o644); err != nil {
			return fault.Wrap(fault.Invalid, err, "writing %s", path)
		}
		fmt.Fprintf(a.Err, "%s is written\n", path)
	}
	return nil
}
