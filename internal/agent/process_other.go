//go:build !linux

package agent

import (
	"errors"
	"os"
	"syscall"
)

func adopt()           {}
func adopted() []int   { return nil }
func bury(int)         {}
func waitFor(int) bool { return false }

func free(string) (int64, error) { return 0, errors.ErrUnsupported }

func lockFile(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
