//go:build linux || openbsd

package clock

import "golang.org/x/sys/unix"

const bootClock = unix.CLOCK_BOOTTIME
