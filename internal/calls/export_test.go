package calls

import "github.com/redis/go-redis/v9"

// MostInFlight is how many batches to a node are in flight at most.
const MostInFlight = width + maxStalled

// SoloAfter is the number of calls after which a caller that is alone sends its calls itself.
const SoloAfter = soloAfter

// SoloRest is the pause after a call whose context has ended.
const SoloRest = soloRest

// HasSolo reports whether callers of a client may send their calls themselves.
func HasSolo(rdb redis.UniversalClient) bool { return newSolo(rdb, nil) != nil }

// HasHooks reports whether a client has hooks.
func HasHooks(rdb *redis.Client) bool { return hasHooks(rdb) }

// Solos returns how many calls users have sent themselves.
func (s *Sender) Solos() uint64 {
	s.solo.mu.Lock()
	defer s.solo.mu.Unlock()
	return s.solo.calls / 2
}

// Begun returns how many calls users have begun to send themselves.
func (s *Sender) Begun() uint64 {
	s.solo.mu.Lock()
	defer s.solo.mu.Unlock()
	return (s.solo.calls + 1) / 2
}
