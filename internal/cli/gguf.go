package cli

import (
	"path/filepath"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/gguf"
	"github.com/destajo/destajo/job"
)

const ggufHelp = "take the model's numbers from the header of this GGUF file, in place of the job's model"

// ofGGUF puts the model of a GGUF file in place of the one that the job names.
// Inference runs on the file's weights as they are; training starts from the
// model's own and takes only its shape. The job's name for the model stays: by
// it prices of tokens are found.
func ofGGUF(j *job.Spec, path string) error {
	f, err := gguf.ReadFile(path)
	if err != nil {
		return err
	}
	m := job.Model{Name: strings.TrimSuffix(filepath.Base(path), ".gguf"), Params: f.Params, Layers: f.Layers, Hidden: f.Hidden,
		KVHeads: f.KVHeads, HeadDim: f.HeadDim, Vocab: f.Vocab, Context: f.Context,
		File: &job.ModelFile{Weights: f.Weights, Precision: f.Format, Width: f.Width, Experts: f.Experts, Routed: f.Routed, Tied: f.Tied}}
	if f.Experts > 0 {
		m.Active = f.Active
	}
	put := func(into *job.Model) {
		if into.Name != "" {
			m.Name = into.Name
		}
		*into = m
	}
	switch w := j.Work; {
	case w != nil && w.Generate != nil:
		put(&w.Generate.Model)
	case w != nil && w.Traffic != nil:
		put(&w.Traffic.Model)
	case w != nil && w.Finetune != nil:
		m.File.Weights, m.File.Precision = 0, ""
		put(&w.Finetune.Model)
	case w != nil && w.Train != nil:
		m.File.Weights, m.File.Precision = 0, ""
		put(&w.Train.Model)
	default:
		return fault.New(fault.Invalid, "--gguf is of no use to job %q, whose work is not on a language model", j.Name).
			Hint("it serves work of the forms generate, traffic, finetune and train")
	}
	return nil
}
