//go:build unix

package node

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

const diskFull = syscall.ENOSPC

// waitLock locks an open file, and waits for it. Closing the file unlocks it.
func waitLock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// tryLock locks an open file, unless another has it.
func tryLock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// detach gives a command a session of its own, so that no terminal ends it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }

// ours says whether a file belongs to this user.
func ours(i fs.FileInfo) bool {
	s, ok := i.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid()
}
