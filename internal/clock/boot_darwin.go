package clock

import "golang.org/x/sys/unix"

// The raw monotonic clock counts suspend. Package time reads another one, which does not.
const bootClock = unix.CLOCK_MONOTONIC_RAW
