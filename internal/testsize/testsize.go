// Package testsize chooses the size of tests that can run for minutes: races, sweeps and tests of scale. By default
// they are short enough to run before every commit. COGWHEEL_FULL=1 gives them their full size, as .ci/run does. With
// COGWHEEL_FULL=1 and -run, tests of figures run at a still larger size and check the figures.
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

// Alone reports whether tests run at full size and -run selects them. Figures of time and memory are checked only
// then, as other tests and packages would spoil them. They hold without the race detector on an idle machine.
func Alone() bool { return Full() && flag.Lookup("test.run").Value.String() != "" }

// WhenAlone returns usual, or large if the tests run alone.
func WhenAlone[T any](usual, large T) T {
	if Alone() {
		return large
	}
	return usual
}
