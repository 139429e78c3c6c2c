package cogwheel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
)

func TestLevel_ATextThatIsNoLevelIsTheWorst(t *testing.T) {
	t.Parallel()
	levels := []cogwheel.Level{
		cogwheel.LevelOK, cogwheel.LevelUnknown, cogwheel.LevelWarning, cogwheel.LevelFailure, "fatal",
	}
	for i, l := range levels {
		require.Zero(t, l.Compare(l), l)
		for _, worse := range levels[i+1:] {
			require.Negative(t, l.Compare(worse), "%s %s", l, worse)
			require.Positive(t, worse.Compare(l), "%s %s", l, worse)
		}
	}
	require.Zero(t, cogwheel.Level("").Compare("fatal"))
	r := cogwheel.Report{Findings: []cogwheel.Finding{{Level: cogwheel.LevelFailure}, {Level: "fatal"}}}
	require.EqualValues(t, "fatal", r.Level())
	require.Equal(t, cogwheel.LevelOK, new(cogwheel.Report).Level())
}
