package calls

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"
)

// ErrAbandoned is the error of a call that was given up before it was sent.
var ErrAbandoned = errors.New("calls: given up before it was sent")

// MayHaveBeenSent reports whether a call that failed may have reached the server all the same.
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

// Passing reports whether the server refused a call for a reason that tends to pass soon, such as a failover, replicas that are away, or
// somebody's slow script.
func Passing(err error) bool {
	_, moved := redis.IsMovedError(err)
	return moved || redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) ||
		redis.IsClusterDownError(err) || Migrating(err) || redis.IsMaxClientsError(err) || redis.IsNoReplicasError(err) ||
		redis.HasErrorPrefix(err, "BUSY ") || redis.HasErrorPrefix(err, "MISCONF")
}

// Migrating reports whether a cluster refused a call because some of its keys have moved to another node already, or are absent, while
// their slot migrates. Nothing was executed.
func Migrating(err error) bool {
	return redis.IsTryAgainError(err) || redis.HasErrorPrefix(err, "Script attempted to access a non local key")
}

// Final reports whether a call that failed is not worth repeating, ever.
func Final(err error) bool { return Refused(err) && !Passing(err) }

// Outage reports whether Redis could not be reached or says that it will be back, as in a failover.
func Outage(err error) bool {
	var network net.Error
	return Passing(err) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, redis.ErrPoolTimeout)
}

// Ended is why ctx is over: its error, and its cause if that says more.
func Ended(ctx context.Context) error {
	return joined.Also(ctx.Err(), context.Cause(ctx))
}
