package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"
)

// serverEnv names the server to test with: redis-server or valkey-server of any version, by its path or by a name on
// PATH. It runs as a Sentinel too.
const serverEnv = "REDIS_SERVER"

// binary is the server that tests run.
type binary struct {
	path         string
	major, minor int
}

// atLeast reports whether the server has all that came with a version. Valkey counts on from Redis 7.2.
func (b binary) atLeast(major, minor int) bool {
	return b.major > major || b.major == major && b.minor >= minor
}

var version = regexp.MustCompile(`\bv=(\d+)\.(\d+)\.`)

// findBinary finds the server and asks it for its version, once.
var findBinary = sync.OnceValues(func() (binary, error) {
	name := os.Getenv(serverEnv)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return binary{}, fmt.Errorf("redistest: no server: %w: install Redis 6.2 or later (Debian: apt-get "+
			"install redis-server redis-sentinel; macOS: brew install redis), or set %s to its path", err, serverEnv)
	}
	said, err := exec.Command(path, "--version").Output()
	if err != nil {
		return binary{}, fmt.Errorf("redistest: the version of %s: %w", path, err)
	}
	return parseVersion(path, string(said))
})

func parseVersion(path, said string) (binary, error) {
	found := version.FindStringSubmatch(said)
	if found == nil {
		return binary{}, fmt.Errorf("redistest: %s does not tell its version, but %q", path, said)
	}
	b := binary{path: path}
	b.major, _ = strconv.Atoi(found[1])
	b.minor, _ = strconv.Atoi(found[2])
	return b, nil
}

// HasShardedChannels reports whether the server of the tests has SSUBSCRIBE and SPUBLISH, as Redis has from 7.0 on.
func HasShardedChannels(tb testing.TB) bool {
	tb.Helper()
	b, err := findBinary()
	if err != nil {
		tb.Fatal(err)
	}
	return b.atLeast(7, 0)
}

// SkipWithoutShardedChannels skips a test of sharded channels on a server that has none.
func SkipWithoutShardedChannels(tb testing.TB) {
	tb.Helper()
	if !HasShardedChannels(tb) {
		tb.Skip("the server has no sharded channels: they came with Redis 7.0")
	}
}
