package cli

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
)

func (a *app) convertCommand() *cobra.Command {
	var from, out string
	c := &cobra.Command{
		Use:     "convert FILE",
		GroupID: "other",
		Short:   "Write a SkyPilot or dstack job file as one of ours",
		Long: `Write a job file of SkyPilot or dstack as one of ours, to standard output. Every
field that is not carried over as it stands is named on standard error, with its
line; nothing is left out silently.`,
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
			all, err := a.convertFile(args[0], data, from, nil) // values of this machine stay out of the file
			if err != nil {
				return err
			}
			var b bytes.Buffer
			for i, x := range all {
				if i > 0 {
					b.WriteString("---\n")
				}
				b.Write(x.text)
			}
			if out == "" {
				_, err = a.Out.Write(b.Bytes())
				return err
			}
			if err := os.WriteFile(out, b.Bytes(), 0o644); err != nil {
				return fault.Wrap(fault.Invalid, err, "writing %s", out)
			}
			fmt.Fprintf(a.Err, "%s is written\n", out)
			return nil
		},
	}
	c.Flags().StringVar(&from, "from", "", "skypilot or dstack")
	c.Flags().StringVar(&out, "out", "", "write to this file")
	return c
}
