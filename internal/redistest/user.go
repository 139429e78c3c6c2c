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
// client log in as that user. Without rights the user has no commands, keys or channels, whatever the default for new
// users is: that of Redis 6.2 is all channels.
func (s *Server) User(tb testing.TB, name string, rights ...string) func(*redis.Options) {
	tb.Helper()
	admin := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer admin.Close()
	rules := []any{"ACL", "SETUSER", name, "reset", "resetchannels", "on", ">secret"}
	for _, right := range rights {
		rules = append(rules, right)
	}
	if err := admin.Do(context.Background(), rules...).Err(); err != nil {
		tb.Fatalf("redistest: rights of %s: %v", name, err)
	}
	return func(o *redis.Options) { o.Username, o.Password = name, "secret" }
}

// documentedPrefix is what names begin with in docs/operations.md and docs/tool.md.
const documentedPrefix = "app:"

// DocumentedRights returns the rights that docs/operations.md or docs/tool.md gives a user, for names that begin
// with prefix. User resets the channels, so the word for that is left out.
func DocumentedRights(tb testing.TB, user, prefix string) (rights []string) {
	tb.Helper()
	docs := "docs"
	for range 4 {
		if _, err := os.Stat(docs); err == nil {
			break
		}
		docs = filepath.Join("..", docs)
	}
	var lines []string
	for _, page := range []string{"operations.md", "tool.md"} {
		text, err := os.ReadFile(filepath.Join(docs, page))
		if err != nil {
			tb.Fatal(err)
		}
		lines = slices.AppendSeq(lines, strings.Lines(string(text)))
	}
	for _, line := range lines {
		words, ok := strings.CutPrefix(strings.TrimSpace(line), "ACL SETUSER "+user+" on >PASSWORD resetchannels ")
		if !ok {
			continue
		}
		if rights != nil {
			tb.Fatalf("redistest: two lines of rights for %s", user)
		}
		rights = strings.Fields(words)
	}
	if rights == nil {
		tb.Fatalf("redistest: no rights of %s in %s", user, docs)
	}
	for i, right := range rights {
		rights[i] = strings.ReplaceAll(right, documentedPrefix, prefix)
	}
	return slices.Clip(rights)
}
