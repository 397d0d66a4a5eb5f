package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestStopMany stops many tasks at once: each hears it, ends as it likes, and
// the exit code is its own.
func TestStopMany(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var start []wire.Task
	var stop []wire.Stop
	for i := range 40 {
		x := run(fmt.Sprintf("%d-1.0", i+1), "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
		start = append(start, x)
		stop = append(stop, wire.Stop{ID: x.ID, Cause: machine.Cancelled, Reason: "enough", Grace: 20 * time.Second})
	}
	n.say(wire.Sync{Start: start})
	for _, x := range start {
		n.logged(x.ID, "ready\n")
	}
	n.say(wire.Sync{Stop: stop})
	for _, x := range start {
		if s := n.until(x.ID, machine.TaskEnded); s.Exit != 9 || s.Cause != machine.Cancelled {
			t.Errorf("%+v", s)
		}
	}
}
