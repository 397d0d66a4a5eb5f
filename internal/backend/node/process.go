package node

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
)

// The supervisor: it starts the agent again after a crash, and leaves a mark
// when the agent exits for good. Descriptor 3 is the lock that says it lives;
// nobody below it may hold that.
const supervisor = `n=0
while :; do
  "$0" "$@" 3>&- && { : >machine.ended; exit 0; }
  n=$((n+1)); d=0.2; [ $n -gt 200 ] && d=3
  sleep $d 3>&- 2>/dev/null || sleep 1 3>&-
done`

// mark is the variable by which agent and supervisor are found again: it holds
// the folder of the machine, for a tag may stand in a copy of the state too.
const mark = "DESTAJO_AGENT"

// supervise starts the supervisor of a machine, when none lives.
// The caller holds the lock.
func (k Keeper) supervise(tag, plane string) error {
	alive, err := os.OpenFile(k.path(tag, "machine.alive"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return diskFault(err, k.Root)
	}
	defer func() { _ = alive.Close() }()
	if !tryLock(alive) {
		return nil // it lives
	}
	out, err := os.OpenFile(k.path(tag, "agent.out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return diskFault(err, k.Root)
	}
	defer func() { _ = out.Close() }()
	home, err := k.home(tag)
	if err != nil {
		return err
	}
	args := []string{"/bin/sh", "-c", supervisor, k.Exe, "agent", "run", "--home", home, "--tag", tag, "--plane", plane}
	if k.Scope {
		args = append(scope(tag), args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = k.path(tag), out, out
	cmd.ExtraFiles = []*os.File{alive}
	detach(cmd)
	for _, e := range os.Environ() {
		// Neither our own settings nor those of a job that we were started by.
		if !strings.HasPrefix(e, "DESTAJO_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(append(cmd.Env, k.Env...), mark+"="+k.path(tag))
	if err := cmd.Start(); err != nil {
		return fault.Wrap(fault.Internal, err, "the agent cannot be started")
	}
	go func() { _ = cmd.Wait() }() // so that it leaves no zombie while we live
	return nil
}

// alive says whether the supervisor of a machine lives. The caller holds the lock.
func (k Keeper) alive(tag string) bool {
	f, err := os.Open(k.path(tag, "machine.alive"))
	if err != nil {
		return false
	}
	defer f.Close()
	return !tryLock(f)
}

// kill ends every process of a machine by force, and returns nil when none is
// left. The caller holds the lock.
func (k Keeper) kill(tag string) error {
	for until := time.Now().Add(3 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		found, err := k.processes(tag)
		if err != nil {
			return err
		}
		if len(found) == 0 && !k.alive(tag) {
			return nil
		}
		for _, pid := range found {
			kill(pid)
		}
		if time.Now().After(until) {
			return fault.New(fault.Internal, "processes of machine %s do not die: %v", tag, found).Hint("they wait for a device or a disk; look at them with ps")
		}
	}
}

// processes finds supervisor, agent and tasks of a machine: by the mark of the
// first two, and by the path of the notice that every task has in its
// environment. Those of other users cannot be read and are not ours.
func (k Keeper) processes(tag string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the processes of this host cannot be listed").Hint("own machines need Linux with /proc")
	}
	marks := [][]byte{[]byte("\x00" + mark + "=" + k.path(tag) + "\x00"), []byte("=" + k.path(tag, "tasks") + "/")}
	if home, err := k.home(tag); err == nil && home != k.path(tag) {
		marks = append(marks, []byte("="+filepath.Join(home, "tasks")+"/"))
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || len(env) == 0 {
			continue
		}
		env = append([]byte{0}, env...)
		for _, m := range marks {
			if bytes.Contains(env, m) {
				out = append(out, pid)
				break
			}
		}
	}
	return out, nil
}

// The longest path of a unix socket that every system takes.
const socketLimit = 103

// home is the path that the agent gets as its home: its folder, or where the
// path of its socket would be too long, a link to it in a short place.
func (k Keeper) home(tag string) (string, error) {
	long := k.path(tag)
	if len(long)+len("/agent.sock") <= socketLimit {
		return long, nil
	}
	link, err := k.shortLink(tag)
	if err != nil {
		return "", err
	}
	if to, err := os.Readlink(link); err == nil && to == long {
		return link, nil
	}
	_ = os.Remove(link)
	if err := os.Symlink(long, link); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fault.Wrap(fault.Internal, err, "no short path for the agent's socket")
	}
	return link, nil
}

// shortLink names the link of a machine, in a folder that is this user's alone.
func (k Keeper) shortLink(tag string) (string, error) {
	dir := filepath.Join("/tmp", fmt.Sprintf("destajo-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fault.Wrap(fault.Internal, err, "no short path for the agent's socket").Hint("set DESTAJO_HOME to a path of less than 50 letters")
	}
	i, err := os.Lstat(dir)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "no short path for the agent's socket")
	}
	if !i.IsDir() || i.Mode().Perm() != 0o700 || !ours(i) {
		return "", fault.New(fault.Denied, "%s is not this user's alone", dir).Hint("remove it, or set DESTAJO_HOME to a path of less than 50 letters")
	}
	sum := sha256.Sum256([]byte(k.path(tag)))
	return filepath.Join(dir, hex.EncodeToString(sum[:8])), nil
}

// scope is the command that moves what follows it out of the login session, so
// that logging out does not end it; nothing where that is not to be had.
func scope(tag string) []string {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	run := []string{"systemd-run", "--quiet", "--scope", "--collect", "-p", "Delegate=yes"}
	if os.Getuid() != 0 {
		who, err := user.Current()
		if err != nil {
			return nil
		}
		if _, err := os.Stat("/var/lib/systemd/linger/" + who.Username); err != nil {
			return nil // the user's own manager ends with the last login
		}
		run = append(run, "--user")
	}
	try := exec.Command(run[0], append(run[1:], "true")...)
	if try.Run() != nil {
		return nil
	}
	// Of a machine whose supervisor died, tasks may still live in the old scope.
	return append(run, "--unit", fmt.Sprintf("destajo-%s-%d", tag, time.Now().UnixNano()))
}
