// Package gguftest makes headers of GGUF files for tests. They list tensors
// without their data, which readers of headers do not need.
package gguftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// File is a GGUF file to be.
type File struct {
	Version uint32 // 3 unless said
	Keys    []Key
	Tensors []Tensor
}

// Key is one entry of metadata: a string, uint32, float32, bool, []string or []uint32.
type Key struct {
	Name  string
	Value any
}

// Tensor is a tensor with its number of ggml's types.
type Tensor struct {
	Name string
	Type uint32
	Dims []uint64
}

// Bytes writes the header.
func (f File) Bytes() []byte {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if s, ok := v.(string); ok {
				v = append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
			}
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				panic(err) // a type that Key does not name
			}
		}
	}
	if f.Version == 0 {
		f.Version = 3
	}
	b.WriteString("GGUF")
	put(f.Version, uint64(len(f.Tensors)), uint64(len(f.Keys)))
	for _, k := range f.Keys {
		put(k.Name)
		switch v := k.Value.(type) {
		case uint32:
			put(uint32(4), v)
		case float32:
			put(uint32(6), v)
		case bool:
			put(uint32(7), v)
		case string:
			put(uint32(8), v)
		case []uint32:
			put(uint32(9), uint32(4), uint64(len(v)), v)
		case []string:
			put(uint32(9), uint32(8), uint64(len(v)))
			for _, s := range v {
				put(s)
			}
		default:
			panic(fmt.Sprintf("gguftest: %T", v))
		}
	}
	offset := uint64(0)
	for _, t := range f.Tensors {
		put(t.Name, uint32(len(t.Dims)), t.Dims, t.Type, offset)
		offset += 32
	}
	return b.Bytes()
}

// Types of tensors.
const (
	F32  = 0
	Q4_0 = 2
	Q4K  = 12
	Q6K  = 14
)

// Llama8B is the header of a Llama 3.1 8B at Q4_K_M: embedding at Q4_K, head
// and half of the values and downs at Q6_K.
func Llama8B() File {
	const hidden, width, kv, layers, vocab = 4096, 14336, 1024, 32, 128256
	words := make([]string, vocab)
	for i := range words {
		words[i] = fmt.Sprint(i)
	}
	f := File{
		Keys: []Key{
			{"general.architecture", "llama"}, {"general.name", "Llama 3.1 8B"}, {"general.file_type", uint32(15)}, {"general.type", "model"},
			{"llama.block_count", uint32(layers)}, {"llama.embedding_length", uint32(hidden)}, {"llama.feed_forward_length", uint32(width)},
			{"llama.context_length", uint32(131072)}, {"llama.attention.head_count", uint32(32)}, {"llama.attention.head_count_kv", uint32(8)},
			{"llama.rope.freq_base", float32(500000)}, {"tokenizer.ggml.add_bos_token", true}, {"tokenizer.ggml.tokens", words},
		},
		Tensors: []Tensor{{"token_embd.weight", Q4K, []uint64{hidden, vocab}}, {"output.weight", Q6K, []uint64{hidden, vocab}}, {"output_norm.weight", F32, []uint64{hidden}}},
	}
	for i := range layers {
		more := uint32(Q4K)
		if i%2 == 0 {
			more = Q6K
		}
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		f.Tensors = append(f.Tensors,
			Tensor{name("attn_q"), Q4K, []uint64{hidden, hidden}}, Tensor{name("attn_k"), Q4K, []uint64{hidden, kv}}, Tensor{name("attn_v"), more, []uint64{hidden, kv}},
			Tensor{name("attn_output"), Q4K, []uint64{hidden, hidden}}, Tensor{name("ffn_gate"), Q4K, []uint64{hidden, width}}, Tensor{name("ffn_up"), Q4K, []uint64{hidden, width}},
			Tensor{name("ffn_down"), more, []uint64{width, hidden}}, Tensor{name("attn_norm"), F32, []uint64{hidden}}, Tensor{name("ffn_norm"), F32, []uint64{hidden}})
	}
	return f
}
