package testsize_test

import (
	"flag"
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

func TestWhenAlone(t *testing.T) {
	selected := flag.Lookup("test.run").Value.String()
	defer func() { require.NoError(t, flag.Set("test.run", selected)) }()
	for _, c := range []struct{ full, run, want string }{
		{"", "", "usual"}, {"", "TestX", "usual"}, {"1", "", "usual"}, {"1", "TestX", "large"},
	} {
		t.Setenv("COGWHEEL_FULL", c.full)
		require.NoError(t, flag.Set("test.run", c.run))
		require.Equal(t, c.want, testsize.WhenAlone("usual", "large"), c)
	}
}
