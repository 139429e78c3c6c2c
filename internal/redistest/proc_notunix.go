//go:build !unix

package redistest

import "syscall"

// Sending these fails: processes cannot be paused here.
const (
	sigStop     = syscall.Signal(-1)
	sigContinue = syscall.Signal(-1)
)
