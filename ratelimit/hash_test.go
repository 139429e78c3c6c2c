package ratelimit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func TestHashKeys(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef")
	hash := ratelimit.HashKeys(secret)
	const known = "odKS9tOuMNz3wv2eSUZD0w" // by openssl dgst -sha256 -hmac
	require.Equal(t, known, hash("sk-live-4711"))
	secret[0]++
	require.Equal(t, known, hash("sk-live-4711"), "the secret is copied")
	require.NotEqual(t, known, ratelimit.HashKeys(secret)("sk-live-4711"))
	require.NotEqual(t, known, hash("sk-live-4712"))
	require.Len(t, hash(""), 22)
	require.Len(t, hash(strings.Repeat("long", 1000)), 22)
	func() {
		defer func() {
			err, _ := recover().(error)
			require.ErrorIs(t, err, cogwheel.ErrInvalid)
			require.NotContains(t, err.Error(), "0123456789abcde")
		}()
		ratelimit.HashKeys([]byte("0123456789abcde"))
	}()
}

// A hashed key stands neither in Redis nor in the text of an error.
func TestHashKeys_HideTheKey(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, prefix := newClient(t, rdb), redistest.Name(t)
	k, hash := c.Limiter(prefix, ratelimit.PerHour(5)), ratelimit.HashKeys([]byte("a secret of the service"))
	_, err := k.Allow(t.Context(), hash("sk-live-4711"))
	require.NoError(t, err)
	keys, err := rdb.Keys(t.Context(), prefix+"*").Result()
	require.NoError(t, err)
	require.Equal(t, []string{prefix + ":{" + hash("sk-live-4711") + "}"}, keys)
	_, err = k.AllowN(t.Context(), hash("sk-live-4711"), 6)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.NotContains(t, err.Error(), "4711")
}
