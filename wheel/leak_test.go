package wheel_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Guarantees: W15.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
