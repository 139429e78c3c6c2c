package main_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// reads are the command lines that read each kind of object, with the kind that they find.
var reads = []struct {
	kind string
	args []string
}{
	{"mutex", []string{"inspect", "stock:42"}},
	{"mutex", []string{"inspect", "account:7"}},
	{"fair mutex", []string{"inspect", "report"}},
	{"read/write mutex", []string{"inspect", "catalogue"}},
	{"read/write mutex", []string{"inspect", "prices"}},
	{"semaphore", []string{"permits", "exports"}},
	{"fair semaphore", []string{"permits", "uploads"}},
	{"counting semaphore", []string{"permits", "seats"}},
	{"stored limiter", []string{"limit", "smtp"}},
	{"stored limiter", []string{"limit", "search"}},
	{"limiter", []string{"limit", "api:{user-7}"}},
	{"limiter", []string{"limit", "--rate", "100/24h", "api:{user-7}"}},
	{"limiter of fixed windows", []string{"limit", "--prefix", "login", "--window", "198.51.100.7"}},
	{"limiter of fixed windows", []string{"limit", "--rate=100/1h", "login:{198.51.100.7}:window"}},
	{"limiter of sliding windows", []string{"inspect", "mail:{ada}:sliding"}},
	{"limiter of sliding windows", []string{"limit", "--prefix", "mail", "--sliding", "ada"}},
	{"limiter of sliding windows", []string{"limit", "--rate=100/1h", "mail:{ada}:sliding"}},
	{"queue", []string{"inspect", "orders"}},
	{"queue", []string{"tasks", "orders"}},
	{"queue", []string{"tasks", "--rows", "1", "orders"}},
}

// The JSON of each kind of object is that of testdata/objects.json. UPDATE=1 writes it.
func TestJSON_OfEachKind(t *testing.T) {
	t.Parallel()
	s := startService(t)
	var got string
	for _, r := range reads {
		text := must(t, s.url, append(r.args, "--json")...)
		var parsed struct {
			Name    string
			Objects []struct{ Kind string }
		}
		require.NoError(t, json.Unmarshal([]byte(text), &parsed))
		require.Len(t, parsed.Objects, 1)
		require.Equal(t, r.kind, parsed.Objects[0].Kind, r.args)
		got += normalised(text, inJSON)
	}
	const golden = "testdata/objects.json"
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
