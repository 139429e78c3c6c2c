package redistest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// User creates a user with the given rights, in the words of ACL SETUSER, and returns an option that makes a
// client log in as that user. Without rights the user has no commands, keys or channels.
func (s *Server) User(tb testing.TB, name string, rights ...string) func(*redis.Options) {
	tb.Helper()
	admin := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer admin.Close()
	rules := []any{"ACL", "SETUSER", name, "reset", "on", ">secret"}
	for _, right := range rights {
		rules = append(rules, right)
	}
	if err := admin.Do(context.Background(), rules...).Err(); err != nil {
		tb.Fatalf("redistest: rights of %s: %v", name, err)
	}
	return func(o *redis.Options) { o.Username, o.Password = name, "secret" }
}

// documentedPrefix is what names begin with in docs/operations.md.
const documentedPrefix = "app:"

// DocumentedRights returns the rights that docs/operations.md gives a package, for names that begin with prefix.
func DocumentedRights(tb testing.TB, pkg, prefix string) (rights []string) {
	tb.Helper()
	path := filepath.Join("docs", "operations.md")
	for range 4 {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Join("..", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words, ok := strings.CutPrefix(line, "ACL SETUSER "+pkg+" on >PASSWORD ")
		if !ok {
			continue
		}
		if rights != nil {
			tb.Fatalf("redistest: two lines of rights for %s", pkg)
		}
		rights = strings.Fields(words)
	}
	if rights == nil {
		tb.Fatalf("redistest: no rights of %s in %s", pkg, path)
	}
	for i, right := range rights {
		rights[i] = strings.ReplaceAll(right, documentedPrefix, prefix)
	}
	return slices.Clip(rights)
}
