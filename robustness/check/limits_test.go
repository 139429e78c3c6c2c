package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	may := oracle.Limit{Rate: 1, Per: 10, Burst: 2}.BucketBound()
	call := history.Call{Event: history.Event{N: 1, Object: "limit"}, Outcome: history.Granted}
	require.Empty(t, check.Limit([]*history.Call{&call, &call}, may, 0, 2))
	three := []*history.Call{&call, &call, &call}
	require.Len(t, check.Limit(three, may, 0, 2), 1, "one too many (control)")
	require.Empty(t, check.Limit(three, may, 1, 2), "a loss of data allows one burst")
}
