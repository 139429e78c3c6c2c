package main

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func Example() {
	main()
	// Output:
	// connection 1 has sent a request
	// connection 2 was idle and is closed
	// 1 timer was left, <nil>
}
