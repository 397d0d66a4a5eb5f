//go:build !unix

package node

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// Windows hosts cannot be machines yet: there is no lock to wait for, so that
// every call ends with these words.
var errSystem = errors.New("agents run on Linux only; use a machine over SSH")

const diskFull = syscall.Errno(112) // ERROR_DISK_FULL

func waitLock(*os.File) error { return errSystem }

func tryLock(*os.File) bool { return false }

func detach(*exec.Cmd) {}

func kill(int) {}

func ours(fs.FileInfo) bool { return false }
