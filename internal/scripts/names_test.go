package scripts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Guarantees: A1.
func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"orders", " ", ":", "*?[", "{a}", "orders:{42}", "{a}{b}", "a{b}c{", "a}{b}",
		"\x00", "a\r\nb", "\xff\xfe", "redisson_lock__channel:{a}", strings.Repeat("x", scripts.MaxName),
	} {
		require.NoError(t, scripts.CheckName(name), "%q", name)
	}
	for _, name := range []string{
		"", "{", "}", "{}", "{}x", "a{b", "a}b", "x{}{a}", "a}{b", "}{", "a{}b", strings.Repeat("x", scripts.MaxName+1),
	} {
		err := scripts.CheckName(name)
		require.ErrorIs(t, err, scripts.ErrName, "%.20q", name)
		var named *scripts.NameError
		require.ErrorAs(t, err, &named)
		require.Equal(t, name, named.Name)
		require.Less(t, len(err.Error()), 256)
	}
}

func TestNames_AreRedissons(t *testing.T) {
	t.Parallel()
	require.Equal(t, "p:{orders}", scripts.PrefixName("p", "orders"))
	require.Equal(t, "p:a{b}", scripts.PrefixName("p", "a{b}"))
	require.Equal(t, "{orders}:s", scripts.SuffixName("orders", "s"))
	require.Equal(t, "a{b}:s", scripts.SuffixName("a{b}", "s"))
	require.Equal(t, "redisson_lock__channel:{orders}", scripts.LockChannel("orders"))
}

// tag is the part of a key that decides its slot, as the Redis Cluster
// specification words it.
func tag(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	n := strings.IndexByte(key[open+1:], '}')
	if n < 1 {
		return key
	}
	return key[open+1 : open+1+n]
}

func FuzzCheckName(f *testing.F) {
	for _, seed := range []string{"a", "{a}", "a}b", "a{b", "{}", "x{}{a}", "a}{b}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		same := name != "" && tag(name) == tag(scripts.PrefixName("p", name)) && tag(name) == tag(scripts.SuffixName(name, "s"))
		err := scripts.CheckName(name)
		if err == nil {
			require.True(t, same, "accepted, yet its keys part: %q", name)
			return
		}
		require.ErrorIs(t, err, scripts.ErrName)
		if strings.Contains(name, "{") && len(name) <= scripts.MaxName {
			// A name with braces but no tag may agree with its derived keys by
			// being refused for its form alone; it must not be one with a tag.
			require.Equal(t, name, tag(name))
			return
		}
		require.True(t, !same || len(name) > scripts.MaxName, "refused, yet its keys agree: %q", name)
	})
}
