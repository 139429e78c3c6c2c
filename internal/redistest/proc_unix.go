//go:build unix

package redistest

import "syscall"

const (
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)
