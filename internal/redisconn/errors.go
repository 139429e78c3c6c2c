package redisconn

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrAbandoned is the error of a call that was given up before it was sent.
var ErrAbandoned = errors.New("redisconn: given up before it was sent")

// MayHaveBeenSent reports whether a call that failed may have reached the server.
func MayHaveBeenSent(err error) bool {
	var op *net.OpError
	switch {
	case Refused(err):
		return false
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted),
		errors.Is(err, ErrAbandoned):
		return false
	case errors.As(err, &op) && op.Op == "dial":
		return false
	}
	return true
}

// Refused reports whether the error is an answer of the server.
func Refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// nonLocalKey is the refusal of a command of a script; Redis 6.2 and 7 say different things before it.
const nonLocalKey = "attempted to access a non local key"

// Migrating reports whether a cluster refused a call because some of its keys have moved to another node
// already, or are absent, while their slot migrates. Nothing was executed.
func Migrating(err error) bool {
	return redis.IsTryAgainError(err) || Refused(err) && strings.Contains(err.Error(), nonLocalKey)
}

// Transient reports whether the server refused a call for a reason that tends to pass soon, such as a
// failover, missing replicas, or a slow script. Nothing was executed.
func Transient(err error) bool { return Refused(err) && classify(err) == Unavailable }

// Permanent reports whether the server refused a call for a reason that does not pass by itself. It is not
// worth repeating.
func Permanent(err error) bool { return Refused(err) && classify(err) != Unavailable }

// IsUnavailable reports whether Redis could not be reached, or says that it cannot serve now.
func IsUnavailable(err error) bool {
	return classify(err) == Unavailable && !errors.Is(err, ErrAbandoned)
}
