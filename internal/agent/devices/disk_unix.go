//go:build linux || darwin

package devices

import "syscall"

// free is the room for an ordinary user on the disk of dir, in bytes.
func free(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // its type differs by system
}
