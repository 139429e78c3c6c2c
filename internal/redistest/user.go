package redistest

import (
	"context"
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
