//go:build unix

package ssh

import (
	"os/exec"
	"syscall"
)

// group puts a command into a process group, which is killed as one: an
// ssh_command may be a shell that waits for ssh.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
