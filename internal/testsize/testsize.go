// Package testsize chooses the size of tests that can run for minutes: races, sweeps and tests of scale. By default
// they are short enough to run before every commit. COGWHEEL_FULL=1 gives them their full size, as .ci/run does.
package testsize

import (
	"flag"
	"os"
)

// Full reports whether tests run at full size.
func Full() bool { return os.Getenv("COGWHEEL_FULL") == "1" }

// Of returns few, or many at full size.
func Of[T any](few, many T) T {
	if Full() {
		return many
	}
	return few
}

// Alone reports whether -run selects tests. Figures of time and memory are checked only then, at full size: other
// packages, which run beside the whole suite, would spoil them.
func Alone() bool { return Full() && flag.Lookup("test.run").Value.String() != "" }
