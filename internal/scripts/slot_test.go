package scripts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Slots are those of the server.
func TestSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	for key, tag := range map[string]string{
		"foo": "foo", "user:{7}:a": "7", "{}x": "{}x", "a{b": "a{b", "{{a}}": "{a", "a}{b}{c}": "b", "": "", "\x00\xff{\xfe}": "\xfe",
	} {
		require.Equal(t, tag, scripts.HashTag(key))
		require.EqualValues(t, rdb.ClusterKeySlot(t.Context(), key).Val(), scripts.Slot(key), "%q", key)
	}
}
