package docscheck_test

import (
	"os"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// The tests name documents and sources from the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	redistest.Main(m, redistest.DefaultWheel)
}
