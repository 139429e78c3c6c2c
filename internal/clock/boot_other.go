//go:build !(linux || darwin || openbsd || windows)

package clock

import "time"

// bootTime finds no boot clock that is known to count suspend.
func bootTime() (time.Duration, bool) { return 0, false }
