package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/node"
	"github.com/destajo/destajo/money"
)

// The journal is the provider's memory: a line for each thing that happened,
// appended under a lock. Every process reads on from where it was, so that all
// see one truth, and a process that dies at any moment loses nothing.
type journal struct {
	folder string
	file   *os.File
	read   int64

	machines map[string]*instance
	order    []*instance
	living   []*instance    // of them, those that are not gone, or only just
	tried    map[string]int // launches of an offer, of a tag
	calls    []time.Time    // of the last second, when there is a limit
	number   int            // of calls
}

// event is one line.
type event struct {
	At   time.Time `json:"at"`
	What string    `json:"what"` // call, made, end, off, gone
	Op   string    `json:"op,omitempty"`
	Tag  string    `json:"tag,omitempty"`
	Why  string    `json:"why,omitempty"`

	Made *instance `json:"made,omitempty"`
}

// instance is a machine, with the fate that was drawn when it was made.
type instance struct {
	Tag     string       `json:"tag"`
	Plane   string       `json:"plane"`
	Sale    string       `json:"offer"`
	Price   money.Amount `json:"price_hour"`
	Made    time.Time    `json:"at"`
	Boots   time.Time    `json:"boots"` // its agent starts
	Reclaim time.Time    `json:"reclaim,omitzero"`
	Notice  time.Time    `json:"notice,omitzero"`
	Dies    time.Time    `json:"dies,omitzero"`
	HideAt  time.Time    `json:"hide_at,omitzero"`
	HideTo  time.Time    `json:"hide_to,omitzero"`
	Swallow int          `json:"swallow,omitempty"` // ends that do nothing

	ends  int       // asked for
	ended time.Time // an end was taken
	off   time.Time // powered off
	gone  time.Time
	why   string

	started bool // its agent, by this process
	cut     bool // its agent's end, by this process
	sim     *simulation
}

func openJournal(folder string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(folder, "journal"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the fake provider's journal cannot be opened")
	}
	return &journal{folder: folder, file: f, machines: map[string]*instance{}, tried: map[string]int{}}, nil
}

// lock takes the provider and reads what others wrote.
func (j *journal) lock() (func(), error) {
	unlock, err := node.Lock(filepath.Join(j.folder, "lock"))
	if err != nil {
		return nil, err
	}
	if err := j.catchUp(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (j *journal) catchUp() error {
	i, err := j.file.Stat()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the fake provider's journal cannot be read")
	}
	if i.Size() == j.read {
		return nil
	}
	data := make([]byte, i.Size()-j.read)
	if _, err := j.file.ReadAt(data, j.read); err != nil && !errors.Is(err, io.EOF) {
		return fault.Wrap(fault.Internal, err, "the fake provider's journal cannot be read")
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	for line := range bytes.Lines(data[:end]) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return fault.Wrap(fault.Internal, err, "the fake provider's journal is damaged")
		}
		j.take(e)
	}
	j.read += int64(end)
	if end < len(data) { // a writer died within its line
		if err := j.file.Truncate(j.read); err != nil {
			return fault.Wrap(fault.Internal, err, "the fake provider's journal cannot be mended")
		}
	}
	return nil
}

// add writes an event down and then takes it. The caller holds the lock.
func (j *journal) add(e event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "an event of the fake provider cannot be written")
	}
	line = append(line, '\n')
	if _, err := j.file.WriteAt(line, j.read); err != nil {
		return fault.Wrap(fault.Internal, err, "an event of the fake provider cannot be written").Hint("is the disk full?")
	}
	j.read += int64(len(line))
	j.take(e)
	return nil
}

func (j *journal) take(e event) {
	m := j.machines[e.Tag]
	switch e.What {
	case "call":
		j.number++
		j.calls = append(j.calls, e.At)
		for len(j.calls) > 0 && e.At.Sub(j.calls[0]) > time.Second {
			j.calls = j.calls[1:]
		}
	case "refused":
		j.tried[e.Op]++
	case "made":
		e.Made.Tag = e.Tag
		j.machines[e.Tag] = e.Made
		j.order = append(j.order, e.Made)
		j.living = append(j.living, e.Made)
		j.tried[e.Made.Sale]++
	case "end":
		if m != nil {
			m.ends++
			if m.ends > m.Swallow && m.ended.IsZero() {
				m.ended = e.At
			}
		}
	case "off":
		if m != nil && m.off.IsZero() {
			m.off, m.why = e.At, e.Why
		}
	case "gone":
		if m != nil && m.gone.IsZero() {
			m.gone, m.why = e.At, e.Why
		}
	}
}

// forget drops the machines that were gone before a moment from the living.
func (j *journal) forget(before time.Time) {
	j.living = slices.DeleteFunc(j.living, func(m *instance) bool { return !m.gone.IsZero() && m.gone.Before(before) })
}

// live counts the machines of an offer that are not gone.
func (j *journal) live(sale string) int {
	n := 0
	for _, m := range j.living {
		if m.Sale == sale && m.gone.IsZero() {
			n++
		}
	}
	return n
}

func (j *journal) callNumber() string { return strconv.Itoa(j.number) }
