package node

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// Command is `destajo agent node`, which the SSH backend runs on the far host:
//
//	start --root R --tag T --plane P     Reply.Found: the machine
//	list  --root R --plane P             Reply.Machines
//	end   --root R --tag T               Reply
//	probe                                Reply.Host: what the host has
//	connect --root R --tag T             standard input and output are a stream to the agent
//
// R may begin with ~/. What is asked for is answered in one line of JSON; a
// fault is an answer too, and no failure of the command.
func Command(ctx context.Context, args []string, in io.Reader, out io.Writer, probe func(context.Context) machine.Host) error {
	if len(args) == 0 {
		return fault.New(fault.Invalid, "agent node needs one of start, list, end, probe, connect")
	}
	flags := flag.NewFlagSet("agent node", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var root, tag, plane string
	flags.StringVar(&root, "root", "~/.destajo/agents", "")
	flags.StringVar(&tag, "tag", "", "")
	flags.StringVar(&plane, "plane", "", "")
	if err := flags.Parse(args[1:]); err != nil {
		return fault.Wrap(fault.Invalid, err, "agent node")
	}
	var reply Reply
	k, err := open(root)
	if err == nil {
		switch args[0] {
		case "start":
			reply.Found, err = k.Start(tag, plane)
		case "list":
			reply.Machines, err = k.List(plane)
		case "end":
			err = k.End(ctx, tag)
		case "probe":
			host := probe(ctx)
			reply.Host = &host
		case "connect":
			return k.bridge(ctx, tag, in, out)
		default:
			err = fault.New(fault.Invalid, "agent node knows no %q", args[0])
		}
	}
	if err != nil {
		reply = Reply{Fault: &wire.Refusal{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}}
	}
	return json.NewEncoder(out).Encode(reply)
}

// Reply is what the command answers.
type Reply struct {
	Found    backend.Found   `json:"found"`
	Machines []backend.Found `json:"machines"`
	Host     *machine.Host   `json:"host,omitempty"`
	Fault    *wire.Refusal   `json:"fault,omitempty"`
}

// Err is the fault that the far side answered.
func (r Reply) Err() error {
	if r.Fault == nil {
		return nil
	}
	f := fault.New(fault.Kind(r.Fault.Kind), "%s", r.Fault.Message)
	if r.Fault.Hint != "" {
		f = f.Hint("%s", r.Fault.Hint)
	}
	return f
}

func open(root string) (Keeper, error) {
	if rest, ok := strings.CutPrefix(root, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return Keeper{}, fault.Wrap(fault.Internal, err, "this user has no home folder")
		}
		root = filepath.Join(home, rest)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return Keeper{}, fault.Wrap(fault.Internal, err, "no folder for agents")
	}
	exe, err := os.Executable()
	if err != nil {
		return Keeper{}, fault.Wrap(fault.Internal, err, "the path of this program is unknown")
	}
	return Keeper{Root: root, Exe: exe, Scope: true}, nil
}

// StreamLine is the line after which what `connect` says is the agent's. What a
// host's shell says at login stands before it.
const StreamLine = "destajo-stream"

// bridge joins standard input and output with the agent. It begins with
// StreamLine, or is a Reply with the fault.
func (k Keeper) bridge(ctx context.Context, tag string, in io.Reader, out io.Writer) error {
	conn, err := k.Dial(ctx, tag)
	if err != nil {
		return json.NewEncoder(out).Encode(Reply{Fault: &wire.Refusal{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}})
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(out, StreamLine+"\n"); err != nil {
		return fault.Wrap(fault.Unreachable, err, "nobody listens")
	}
	go func() {
		_, _ = io.Copy(conn, in)
		if u, ok := conn.(*net.UnixConn); ok {
			_ = u.CloseWrite()
		}
	}()
	_, err = io.Copy(out, conn)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fault.Wrap(fault.Unreachable, err, "the stream to the agent broke")
	}
	return nil
}
