package peers_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// nodeModules installs node-redlock, in the versions of testdata/node/package-lock.json, and returns the directory.
var nodeModules = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "peers-node")
	if err != nil {
		return "", err
	}
	redistest.AtEnd(func(context.Context) error { return os.RemoveAll(dir) })
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "node"))); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return dir, nil
})

// needs skips the test if the platform cannot run the library: node-redlock needs node, npm, and what npm installs.
func needs(t *testing.T, library string) {
	t.Helper()
	if library != node4Lib && library != node5Lib {
		return
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node-redlock takes no part: ", err)
	}
	if _, err := nodeModules(); err != nil {
		t.Skip("node-redlock takes no part: ", err)
	}
}
