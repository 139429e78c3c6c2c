// Package robustness runs clients of the library in several processes against real servers, injects faults, records
// what the clients believed, and checks the promises of docs/guarantees.md against these histories.
//
//	make robustness                  # the fixed scenarios, and one of a random seed
//	make robustness SEED=7           # that seed again
//	make robustness DURATION=30m     # random scenarios for that long
//	make controls                    # each wrong implementation is caught
//
// A run has three parts. The parent, a test, starts the servers and the processes, chooses faults by its seed and
// injects them. A process is the test binary itself: its clients acquire, rely on and release objects, and record
// each step on stdout. When the run is over, package check reads the history. A seed determines what the clients ask
// for and which faults are injected when; it does not determine how the machine schedules processes.
//
// A run fails if a promise is broken, if a checker cannot decide in time, and also if no fault took effect.
package robustness
