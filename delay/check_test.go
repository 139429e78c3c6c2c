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
