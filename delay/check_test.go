package delay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestClient_Check(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	report, err := c.Check(t.Context(), c.Queue(redistest.Name(t)))
	require.NoError(t, err, "%v", report)
	_, err = c.Check(t.Context())
	require.NoError(t, err)
}

func TestClient_CheckSaysWhatAPolicyEvicts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1gb").Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	report, err := newClient(t, rdb).Check(t.Context())
	require.NoError(t, err)
	require.Contains(t, report.String(), "volatile-lru may evict tokens and the records of calls")
	require.Contains(t, report.String(), "tasks have no expiry")
}
