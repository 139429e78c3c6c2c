//go:build !unix

package redistest

import "syscall"

// Sending these fails: there is no way to pause a process here.
const (
	sigStop     = syscall.Signal(-1)
	sigContinue = syscall.Signal(-1)
)
