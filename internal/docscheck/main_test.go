package docscheck_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// The tests name documents and sources from the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	// The default wheel is never stopped.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/cogwheel-go/cogwheel/wheel.(*scheduler).work"))
}
