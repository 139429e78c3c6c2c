package main

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The README shows this output.
func Example() {
	main()
	// Output:
	// order 1 is paid
	// order 2 was not paid and is closed
	// 0 timers were left, <nil>
}
