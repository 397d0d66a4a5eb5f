// Package gguf reads what the header of a GGUF file says of its model: the
// shape of the network and the exact bytes of its weights. Only the header is
// read, so the first megabytes of a file are enough. The format is described
// in ggml's docs/gguf.md.
//
// The reader allocates nothing by what a file promises: counts and lengths are
// checked, and lists are read through, not kept.
package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// Model is the shape of a file's network. A figure that the header does not
// give is 0.
type Model struct {
	Name         string // as its makers call it
	Architecture string // in llama.cpp's words, such as llama or qwen3moe
	Format       string // of the weights, in lower case, such as q4_k_m
	Params       float64
	Active       float64   // parameters that one token uses
	Weights      gpu.Bytes // of all tensors as stored
	Layers       int
	Hidden       int
	KVHeads      int
	HeadDim      int // 2 x KVHeads x HeadDim values are cached for each token and layer
	Width        int // of the feed-forward part, of one expert where there are experts
	Vocab        int
	Context      int // longest, tokens
	Experts      int
	Routed       int  // experts that one token uses
	Tied         bool // embedding and head are one matrix
}

// ReadFile reads the header of a file, and of all its parts where a model is
// split over several. What is no model in GGUF is a fault of the kind Invalid.
func ReadFile(path string) (*Model, error) {
	h, err := open(path)
	if err != nil {
		return nil, err
	}
	parts := int(h.number("split.count"))
	if parts <= 1 {
		return h.model(path)
	}
	const most = 1000
	at := partName.FindStringSubmatchIndex(path)
	if at == nil || parts > most {
		return nil, fault.New(fault.Invalid, "%s is one of %d parts and its name does not say which", path, parts).
			Hint("parts are named as llama.cpp does: NAME-00001-of-%05d.gguf", parts)
	}
	var whole *header
	for i := range parts {
		part := fmt.Sprintf("%s%05d%s", path[:at[2]], i+1, path[at[3]:])
		p, err := open(part)
		if err != nil {
			return nil, err
		}
		if whole == nil {
			whole = p // the first part holds what is said of the model
			continue
		}
		whole.tensors.add(&p.tensors)
	}
	return whole.model(path)
}

var partName = regexp.MustCompile(`-(\d{5})-of-\d{5}\.gguf$`)

func open(path string) (*header, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.Invalid, "there is no file %s", path).Hint("check the path")
	case err != nil:
		return nil, fault.Wrap(fault.Invalid, err, "the file cannot be read")
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fault.New(fault.Invalid, "%s is a folder", path).Hint("name a .gguf file in it")
	}
	return read(f, path)
}

// model makes the numbers of a header.
func (h *header) model(path string) (*Model, error) {
	arch := h.texts["general.architecture"]
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "%s: "+format, append([]any{path}, args...)...).
			Hint("a GGUF file of a language model is needed; else describe it as model: {params: 7B, layers: 32, hidden: 4096}")
	}
	if arch == "" {
		return nil, bad("the header names no architecture")
	}
	if t := h.texts["general.type"]; t != "" && t != "model" || arch == "clip" {
		return nil, bad("it holds a part of a model (%s), not a whole one", strings.TrimSpace(t+" "+arch))
	}
	var wrong error
	whole := func(key string) int {
		x := h.number(arch + "." + key)
		if x < 0 || x > 1e9 || x != math.Trunc(x) {
			wrong = bad("%s.%s is %v", arch, key, x)
			return 0
		}
		return int(x)
	}
	t := &h.tensors
	m := &Model{
		Name: h.texts["general.name"], Architecture: arch, Format: fileTypes[int(h.number("general.file_type"))], Params: t.params, Active: t.params,
		Weights: gpu.Bytes(t.bytes), Layers: whole("block_count"), Hidden: whole("embedding_length"), Width: whole("feed_forward_length"),
		Context: whole("context_length"), Experts: whole("expert_count"), Routed: whole("expert_used_count"), Vocab: h.lengths["tokenizer.ggml.tokens"], Tied: !t.head,
	}
	if _, stated := h.numbers["general.file_type"]; !stated || m.Format == "" {
		m.Format = t.most()
	}
	if m.Vocab == 0 {
		m.Vocab = whole("vocab_size")
	}
	heads := whole("attention.head_count")
	m.KVHeads = whole("attention.head_count_kv")
	if m.KVHeads == 0 {
		m.KVHeads = heads
	}
	key, value := whole("attention.key_length"), whole("attention.value_length")
	switch latent := whole("attention.kv_lora_rank"); {
	case latent > 0: // one latent vector, with its rotated part, stands for all keys and values
		m.KVHeads, m.HeadDim = 1, (latent+whole("rope.dimension_count")+1)/2
	case key > 0 && value > 0:
		m.HeadDim = (key + value + 1) / 2
	case heads > 0:
		m.HeadDim = m.Hidden / heads
	}
	if m.Experts > 0 {
		if m.Routed <= 0 || m.Routed > m.Experts {
			return nil, bad("a token cannot use %d of %d experts", m.Routed, m.Experts)
		}
		if w := whole("expert_feed_forward_length"); w > 0 {
			m.Width = w
		}
		m.Active -= t.experts * (1 - float64(m.Routed)/float64(m.Experts))
	}
	switch {
	case wrong != nil:
		return nil, wrong
	case m.Layers == 0 || m.Hidden == 0:
		return nil, bad("the header of this %s gives no block_count or embedding_length", arch)
	case m.Params == 0:
		return nil, bad("it holds no tensors")
	}
	return m, nil
}

// fileTypes are the formats that general.file_type numbers, as in llama.h.
var fileTypes = map[int]string{
	0: "fp32", 1: "fp16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s",
	15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s",
	25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4",
}
