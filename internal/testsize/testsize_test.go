package testsize_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/testsize"
)

func TestOf(t *testing.T) {
	for value, want := range map[string]string{"": "few", "0": "few", "1": "many"} {
		t.Run("COGWHEEL_FULL="+value, func(t *testing.T) {
			t.Setenv("COGWHEEL_FULL", value)
			require.Equal(t, want, testsize.Of("few", "many"))
			require.Equal(t, want == "many", testsize.Full())
		})
	}
}
