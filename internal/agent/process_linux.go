package agent

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of what tasks leave behind, so that it
// can be found.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// adopted lists the children that came to us from tasks, and some of our own.
func adopted() []int {
	self := os.Getpid()
	var out []int
	data, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(self) + "/children")
	if err != nil { // a kernel without the list
		for _, pid := range processes() {
			if parent, _, _, ok := stat(pid); ok && parent == self {
				out = append(out, pid)
			}
		}
		return out
	}
	for _, f := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(f); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// bury reaps a child that was adopted and has ended.
func bury(pid int) {
	var s syscall.WaitStatus
	_, _ = syscall.Wait4(pid, &s, syscall.WNOHANG, nil)
}

// waitFor waits for the end of any process by its descriptor; false when the
// kernel cannot.
func waitFor(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err == unix.ESRCH
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false
		case n > 0:
			return true
		}
		time.Sleep(0)
	}
}

// free is how many bytes can be written where dir is.
func free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// lockFile takes a lock that ends with the last process that holds the file.
func lockFile(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }
