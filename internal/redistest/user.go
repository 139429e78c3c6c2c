package redistest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
)

// User gives a user of the server these rights, as ACL SETUSER words them, and returns what makes a client log in as that user. Beside
// them it has what ACL SETUSER gives: no commands, no keys and no channels.
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
