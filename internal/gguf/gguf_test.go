package gguf

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/gguf/gguftest"
)

func write(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func modelOf(t testing.TB, f gguftest.File) (*Model, error) {
	t.Helper()
	h, err := read(bytes.NewReader(f.Bytes()), "x.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return h.model("x.gguf")
}

func TestLlama(t *testing.T) {
	t.Parallel()
	m, err := ReadFile(write(t, filepath.Join(t.TempDir(), "l.gguf"), gguftest.Llama8B().Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	// 8,030,261,248 parameters as the model's card counts them.
	want := &Model{Name: "Llama 3.1 8B", Architecture: "llama", Format: "q4_k_m", Params: 8030261248, Active: 8030261248, Weights: m.Weights,
		Layers: 32, Hidden: 4096, KVHeads: 8, HeadDim: 128, Width: 14336, Vocab: 128256, Context: 131072}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Published files have 4.92 GB, with embedding and values as here.
	if gb := float64(m.Weights) / 1e9; math.Abs(gb-4.92) > .03 {
		t.Errorf("%v GB of weights", gb)
	}
}

// mixture is a network with experts, heads by layer and no list of words.
func mixture(more ...gguftest.Key) gguftest.File {
	return gguftest.File{
		Version: 2,
		Keys: append([]gguftest.Key{
			{Name: "general.architecture", Value: "qwen3moe"}, {Name: "qwen3moe.block_count", Value: uint32(2)}, {Name: "qwen3moe.embedding_length", Value: uint32(256)},
			{Name: "qwen3moe.feed_forward_length", Value: []uint32{0, 1024}}, {Name: "qwen3moe.expert_feed_forward_length", Value: uint32(512)},
			{Name: "qwen3moe.attention.head_count", Value: uint32(8)}, {Name: "qwen3moe.attention.head_count_kv", Value: []uint32{0, 3}},
			{Name: "qwen3moe.attention.key_length", Value: uint32(128)}, {Name: "qwen3moe.attention.value_length", Value: uint32(64)},
			{Name: "qwen3moe.expert_count", Value: uint32(8)}, {Name: "qwen3moe.expert_used_count", Value: uint32(2)}, {Name: "qwen3moe.vocab_size", Value: uint32(1000)},
		}, more...),
		Tensors: []gguftest.Tensor{{Name: "token_embd.weight", Type: gguftest.F32, Dims: []uint64{256, 1000}}, {Name: "blk.0.ffn_up_exps.weight", Type: gguftest.Q4_0, Dims: []uint64{256, 512, 8}}},
	}
}

func TestMixture(t *testing.T) {
	t.Parallel()
	m, err := modelOf(t, mixture())
	if err != nil {
		t.Fatal(err)
	}
	const experts = 256 * 512 * 8
	want := &Model{Architecture: "qwen3moe", Format: "fp32", Params: 256*1000 + experts, Active: 256*1000 + experts/4, Weights: 256*1000*4 + experts/32*18,
		Layers: 2, Hidden: 256, KVHeads: 2, HeadDim: 96, Width: 512, Vocab: 1000, Experts: 8, Routed: 2, Tied: true}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A latent attention caches one vector of kv_lora_rank and the rotated part.
func TestLatentAttention(t *testing.T) {
	t.Parallel()
	m, err := modelOf(t, mixture(gguftest.Key{Name: "qwen3moe.attention.kv_lora_rank", Value: uint32(512)}, gguftest.Key{Name: "qwen3moe.rope.dimension_count", Value: uint32(64)}))
	if err != nil {
		t.Fatal(err)
	}
	if n := 2 * m.KVHeads * m.HeadDim; n != 576 {
		t.Errorf("%d values cached, want 576", n)
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	whole := mixture()
	dir := t.TempDir()
	for i, name := range []string{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"} {
		part := whole
		part.Tensors = whole.Tensors[i : i+1]
		part.Keys = []gguftest.Key{{Name: "split.count", Value: uint32(2)}}
		if i == 0 {
			part.Keys = append(part.Keys, whole.Keys...)
		}
		write(t, filepath.Join(dir, name), part.Bytes())
	}
	want, err := modelOf(t, whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"} {
		got, err := ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-whole +parts):\n%s", name, diff)
		}
	}
	if err := os.Rename(filepath.Join(dir, "m-00001-of-00002.gguf"), filepath.Join(dir, "first.gguf")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"m-00002-of-00002.gguf": "there is no file", "first.gguf": "one of 2 parts"} {
		if _, err := ReadFile(filepath.Join(dir, name)); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestBad(t *testing.T) {
	t.Parallel()
	good := mixture().Bytes()
	with := func(at int, b ...byte) []byte {
		out := bytes.Clone(good)
		copy(out[at:], b)
		return out
	}
	huge := []byte{255, 255, 255, 255, 255, 255, 255, 127}
	key := func(name string, value any) []byte {
		f := mixture()
		for i, k := range f.Keys {
			if k.Name == name {
				f.Keys = append(f.Keys[:i:i], f.Keys[i+1:]...)
				break
			}
		}
		if value != nil {
			f.Keys = append(f.Keys, gguftest.Key{Name: name, Value: value})
		}
		return f.Bytes()
	}
	tensor := func(kind uint32, dims ...uint64) []byte {
		f := mixture()
		f.Tensors = append(f.Tensors, gguftest.Tensor{Name: "x", Type: kind, Dims: dims})
		return f.Bytes()
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "no GGUF file"},
		{"another format", []byte("PK\x03\x04aaaaaaaaaaaaaaaaaaaaaa"), "no GGUF file"},
		{"big-endian", with(4, 0, 0, 0, 3), "big-endian"},
		{"version 1", with(4, 1), "version 1;"},
		{"version 9", with(4, 9), "version 9;"},
		{"huge number of tensors", with(8, huge...), "promises 9223372036854775807 tensors"},
		{"huge number of entries", with(16, huge...), "promises 9223372036854775807 metadata entries"},
		{"huge key", with(24, huge...), "a key of 9223372036854775807 bytes"},
		{"unknown type of value", with(24+8+len("general.architecture"), 99), "unknown type 99"},
		{"huge text", with(24+8+len("general.architecture")+4, huge...), "ends at byte"},
		{"cut in the metadata", good[:100], "ends at byte 100"},
		{"cut in the tensors", good[:len(good)-3], "ends at byte"},
		{"no architecture", key("general.architecture", nil), "names no architecture"},
		{"no layers", key("qwen3moe.block_count", nil), "gives no block_count"},
		{"broken layers", key("qwen3moe.block_count", float32(1.5)), "block_count is 1.5"},
		{"layers as text", key("qwen3moe.block_count", "two"), "gives no block_count"},
		{"more experts used than there are", key("qwen3moe.expert_used_count", uint32(9)), "cannot use 9 of 8"},
		{"an adapter", key("general.type", "adapter"), "a part of a model"},
		{"unknown type of tensor", tensor(99, 32), "unknown type 99"},
		{"a type that is gone", tensor(4, 32), "unknown type 4"},
		{"many dimensions", tensor(0, 1, 1, 1, 1, 1, 1, 1, 1, 1), "9 dimensions"},
		{"an empty side", tensor(0, 4, 0), "a side of 0"},
		{"sides that overflow", tensor(0, 1<<40, 1<<40), "a side of"},
		{"half a block", tensor(gguftest.Q4_0, 33), "in blocks of 32"},
	} {
		path := write(t, filepath.Join(t.TempDir(), "x.gguf"), c.data)
		_, err := ReadFile(path)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s), want %q and a hint", c.name, err, fault.HintOf(err), c.want)
		}
	}
	for path, want := range map[string]string{t.TempDir(): "is a folder", "nowhere.gguf": "there is no file"} {
		if _, err := ReadFile(path); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	good := mixture().Bytes()
	f.Add(good)
	f.Add(good[:60])
	f.Add([]byte("GGUF\x03\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := read(bytes.NewReader(data), "x")
		if err == nil {
			var m *Model
			if m, err = h.model("x"); err == nil && (m.Layers <= 0 || m.Hidden <= 0 || !(m.Params > 0) || m.Active > m.Params || m.Active < 0 || m.Weights < 0) {
				t.Errorf("%+v", m)
			}
		}
		if err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("kind %s: %v", fault.KindOf(err), err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	data := gguftest.Llama8B().Bytes()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := read(bytes.NewReader(data), "x"); err != nil {
			b.Fatal(err)
		}
	}
}
