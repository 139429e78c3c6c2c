package redistest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// sysProcAttr makes the kernel kill the child when the thread that started it ends, and so when the test
// binary is killed.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// waitStopped returns once the kernel has stopped every thread of the process;
// the signal alone is delivered some time after kill(2) returns.
func waitStopped(pid int) {
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return // the process is gone
		}
		// The state is the field after the command name in parentheses.
		rest := stat[bytes.LastIndexByte(stat, ')')+1:]
		if len(rest) < 2 || rest[1] == 'T' || rest[1] == 'Z' {
			return
		}
		runtime.Gosched()
	}
}
