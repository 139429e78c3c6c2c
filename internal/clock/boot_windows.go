package clock

import (
	"time"

	"golang.org/x/sys/windows"
)

func bootTime() (time.Duration, bool) { return windows.DurationSinceBoot(), true }
