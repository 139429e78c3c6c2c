// Package robustness runs clients of the library in several processes against real servers, injects faults, records
// what the clients believed, and checks the promises of docs/guarantees.md against these histories.
//
//	make robustness                  # the fixed scenarios, and one of a random seed
//	make robustness SEED=7           # that seed again
//	make robustness DURATION=30m     # random scenarios for that long
//	make controls                    # each wrong implementation is caught
//	make peers                       # the locks of other libraries under the same faults, as a table
//	make upgrade-check               # two versions go on with what the other wrote: see cmd/upgrade
//	make reliability-report          # the fixed scenarios, and docs/reliability.md from their results
//
// A run has three parts. The parent, a test, starts the servers and the processes, chooses faults by its seed and
// injects them. A process is the test binary itself: its clients acquire, rely on and release objects, and record
// each step on stdout. When the run is over, package check reads the history. A seed determines what the clients ask
// for and which faults are injected when; it does not determine how the machine schedules processes.
//
// Limiters have no holds: their history is replayed for the window in which most was granted. Tasks are scheduled and
// served by the same processes, and the last one serves until the queues are empty: each attempt needs a cause. Timers
// need no server: a process with a million of them is stopped and starved of processor time.
//
// A control is a wrong implementation, which a check has to find in a run that the right one passes. Peers are judged
// by nothing; what the checks count is shown.
//
// Each run is a Result, a line of JSON in the file that ROBUSTNESS_RESULTS names. A run that fails leaves its events,
// the logs of the servers, its seed and the commit below ROBUSTNESS_DIR.
//
// A run fails if a promise is broken, if a checker cannot decide in time, and also if no fault took effect.
package robustness
