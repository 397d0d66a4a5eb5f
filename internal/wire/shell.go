package wire

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/destajo/destajo/fault"
)

// The kinds of frames of a shell's stream: a byte for the kind, four for the
// length of what follows, big-endian.
const (
	FrameData byte = 0 // bytes of the terminal, both ways
	FrameSize byte = 1 // to the agent: columns and rows, two bytes each
	FrameExit byte = 2 // from the agent: the exit code, four bytes; the last frame
)

const frameLimit = 1 << 20

// Frames reads and writes frames. One goroutine may read while others write.
type Frames struct {
	r  io.Reader
	w  io.Writer
	mu sync.Mutex
}

// NewFrames makes frames of a stream.
func NewFrames(r io.Reader, w io.Writer) *Frames { return &Frames{r: r, w: w} }

// Read gives the next frame.
func (f *Frames) Read() (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > frameLimit {
		return 0, nil, fault.New(fault.Internal, "a frame of %d bytes", n)
	}
	data = make([]byte, n)
	_, err = io.ReadFull(f.r, data)
	return head[0], data, err
}

// Write sends one frame.
func (f *Frames) Write(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := make([]byte, 5+len(data))
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(len(data)))
	copy(b[5:], data)
	_, err := f.w.Write(b)
	return err
}

// Size tells the agent how large the terminal is.
func (f *Frames) Size(cols, rows int) error {
	var b [4]byte
	binary.BigEndian.PutUint16(b[:], uint16(cols))
	binary.BigEndian.PutUint16(b[2:], uint16(rows))
	return f.Write(FrameSize, b[:])
}

// ParseSize reads what Size sent.
func ParseSize(b []byte) (cols, rows int, ok bool) {
	if len(b) != 4 {
		return 0, 0, false
	}
	return int(binary.BigEndian.Uint16(b)), int(binary.BigEndian.Uint16(b[2:])), true
}

// Exit tells how the shell ended.
func (f *Frames) Exit(code int) error {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(code))
	return f.Write(FrameExit, b[:])
}

// ParseExit reads what Exit sent.
func ParseExit(b []byte) int {
	if len(b) != 4 {
		return 1
	}
	return int(binary.BigEndian.Uint32(b))
}
