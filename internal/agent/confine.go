package agent

// confine gives the shell text that puts a task's processes under its limits,
// before anything of the job runs; empty where the node offers none.
func (a *Agent) confine(t *task) string { return "" }

// unconfine takes the limits away when the task has ended.
func (a *Agent) unconfine(t *task) {}

// outOfMemory says whether the kernel killed a process of the task for its memory.
func (a *Agent) outOfMemory(t *task) bool { return false }
