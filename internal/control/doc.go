// Package control decides what happens to jobs and machines, and makes it so.
//
// Service is the one door. Decide looks at a Snapshot of the rows and says which
// Steps are due; it is pure. Loop reads the rows that changed, decides, writes
// the steps in one transaction, and lets a keeper per machine make the world
// follow the rows: launch, talk to the agent, fetch logs and files, end. What
// keepers see comes back as observations, which become rows again. Nothing is
// remembered outside the rows but what can be asked again, so every part may
// die at any instruction and be run anew.
//
// # Jobs
//
//	submit ──▶ waiting ──▶ starting ──▶ running ──▶ done
//	            ▲  │  ▲       │           │  │
//	            │  │  └───────┴───────────┘  ├────▶ failed
//	            │  │   no machine, interrupted, lost, moved,
//	            │  │   or failed with retries left
//	            │  └──────────────────────────────▶ failed   (deadline, a job before it failed)
//	            └── stop ──▶ stopping ────────────▶ stopped
//
// A stop is final: a job whose Stop is set never gets another attempt.
//
// # Attempts
//
//	assigned ──▶ running ──▶ ended
//	    │           │           ▲
//	    └───────────┴─▶ stopping┘
//
// An attempt is assigned to all of its machines at once. Its command runs when
// every machine has prepared it (a gang starts together or not at all). It ends
// when every task has ended on its node and the node's log and files are kept
// here, or when its machine is gone, or when the machine was silent for longer
// than the dead-man time of its agent and the margin: then the agent has stopped
// the task by itself. Only an ended attempt lets the job try again, so a job is
// never on two machines.
//
// # Machines
//
//	intent ──▶ booting ──▶ ready ──▶ ending ──▶ gone
//	   │          │                    ▲
//	   └──────────┴────────────────────┘
//	quarantined: of another epoch; nobody uses or ends it but by a person's word
//
// The intent is stored before the backend is asked, with a tag that is unique
// for ever, so that a launch whose answer was lost is found again. A machine
// costs money until its backend no longer has it. Ending is retried for ever.
// Every minute a sweep compares what the backends list with the rows: what
// carries our id and is in no row is ended, if it is of this epoch.
//
// # Lease
//
// One process acts at a time: it holds the lease, whose token grows with every
// holder. The store refuses changes under an older token, and so do the agents:
// a process that was stopped for a while cannot act on what it remembers.
package control
