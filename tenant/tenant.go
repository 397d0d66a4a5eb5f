// Package tenant holds who may do what, money set aside before it is spent, and
// the trail of what was done. One user has one project and is its owner.
package tenant

import (
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
)

// DefaultProject and DefaultMember are those of a state for one user.
const (
	DefaultProject = "default"
	DefaultMember  = "owner"
)

// Role is what a member is in a project.
type Role string

// The roles.
const (
	Owner  Role = "owner"  // everything, members and budgets too
	Admin  Role = "admin"  // everything but owners
	User   Role = "member" // own jobs
	Viewer Role = "viewer" // looks
)

// Action is what a verb of the service needs.
type Action string

// The actions.
const (
	Submit       Action = "submit a job"
	ReadJobs     Action = "see jobs"
	StopOwn      Action = "stop own jobs"
	StopAny      Action = "stop jobs of others"
	Enter        Action = "enter a job"
	ReadMachines Action = "see machines"
	EndMachine   Action = "end machines"
	AddMachine   Action = "add machines"
	ReadCost     Action = "see costs"
)

// allowed is the table of roles and actions; the owner may do everything.
var allowed = map[Role]map[Action]bool{
	Admin:  {Submit: true, ReadJobs: true, StopOwn: true, StopAny: true, Enter: true, ReadMachines: true, EndMachine: true, AddMachine: true, ReadCost: true},
	User:   {Submit: true, ReadJobs: true, StopOwn: true, Enter: true, ReadMachines: true, ReadCost: true},
	Viewer: {ReadJobs: true, ReadMachines: true, ReadCost: true},
}

// Who is on whose behalf a verb is called.
type Who struct {
	Project, Member string
	Role            Role
}

// Local is the one user of a state on this machine.
func Local() Who { return Who{DefaultProject, DefaultMember, Owner} }

// May gives a fault when the role does not allow the action.
func (w Who) May(a Action) error {
	if w.Role == Owner || allowed[w.Role][a] {
		return nil
	}
	return fault.New(fault.Denied, "%s may not %s in project %q", w.Member, a, w.Project).Hint("ask an owner of the project for another role")
}

// Project is whose jobs, money and files belong together.
type Project struct {
	ID      string
	Version int64
	Name    string
	Made    time.Time
}

// Member is a person or a program in a project.
type Member struct {
	Project, ID string
	Version     int64
	Role        Role
	Made        time.Time
}

// Hold is money set aside for one job before its machine exists.
type Hold struct {
	Job       int64
	Version   int64
	Project   string
	Member    string
	Currency  string
	Amount    money.Amount // set aside in all
	Committed money.Amount // of it, used
	Limit     money.Amount // most that the job may cost; 0: no limit of its own
	Released  time.Time    // zero: still held
}

// Event is one line of the trail: who did what to which thing.
type Event struct {
	At      time.Time
	Project string
	Member  string // empty: the control plane itself
	Job     int64  // 0: none
	Machine string // empty: none
	What    string // one word or two: submitted, started, moved, ended, ...
	Detail  string
}
