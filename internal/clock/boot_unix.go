//go:build linux || darwin || openbsd

package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime reads the boot clock. It returns false if the system refuses that.
func bootTime() (time.Duration, bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(bootClock, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
