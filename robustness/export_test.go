package robustness

import (
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// Left returns what a kind may not leave behind.
func Left(
	kind string, keys map[string]time.Duration, channels, clients []string, missing map[string]int64,
	moved time.Duration,
) []check.Fault {
	return remains{keys, channels, clients, missing, moved}.faults(KindOf(kind))
}
