package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/destajo/destajo/internal/wire"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		f := wire.NewFrames(&stream, &stream)
		all := rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "data")
		cols, rows := rapid.IntRange(0, 65535).Draw(t, "columns"), rapid.IntRange(0, 65535).Draw(t, "rows")
		code := rapid.IntRange(0, 255).Draw(t, "code")
		for _, data := range all {
			if err := f.Write(wire.FrameData, data); err != nil {
				t.Fatal(err)
			}
		}
		_ = f.Size(cols, rows)
		_ = f.Exit(code)
		for _, want := range all {
			kind, data, err := f.Read()
			if err != nil || kind != wire.FrameData || !bytes.Equal(data, want) {
				t.Fatal(kind, data, err)
			}
		}
		_, data, err := f.Read()
		if c, r, ok := wire.ParseSize(data); err != nil || !ok || c != cols || r != rows {
			t.Fatal(c, r, ok, err)
		}
		kind, data, err := f.Read()
		if err != nil || kind != wire.FrameExit || wire.ParseExit(data) != code {
			t.Fatal(kind, data, err)
		}
		if _, _, err := f.Read(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}

// FuzzFrames reads what nobody trusts: it must end, in an error or in frames.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{1, 0, 0, 0, 4, 0, 80})
	f.Add([]byte{2, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		frames := wire.NewFrames(bytes.NewReader(b), io.Discard)
		read := 0
		for {
			_, data, err := frames.Read()
			if err != nil {
				return
			}
			if got := int(binary.BigEndian.Uint32(b[read+1:])); got != len(data) {
				t.Fatalf("a frame of %d bytes has %d", got, len(data))
			}
			read += 5 + len(data)
		}
	})
}
