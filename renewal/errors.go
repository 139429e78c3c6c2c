package renewal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
)

var (
	// ErrLost is matched by every loss of a lease, whose cause is ErrGone, ErrExpired or ErrUnwatched. The
	// concrete error is a *LostError. The end of a lease by Lease.Close or Renewer.Close is no loss.
	ErrLost = errors.New("renewal: lease lost")

	// ErrGone is the cause of a loss that the backend reported: the lease had been removed or had expired
	// there.
	ErrGone = errors.New("renewal: the backend no longer knows the lease")

	// ErrExpired is the cause of a loss that the local deadline decided: no renewal was confirmed in time.
	ErrExpired = errors.New("renewal: the deadline passed without a confirmed renewal")

	// ErrUnwatched is the cause of a loss that the wheel forced: it was stopped, or it was full when the
	// lease needed a new entry, as it does for each renewal. Nothing could have announced the end of the
	// lease.
	ErrUnwatched = errors.New("renewal: the wheel no longer watches the lease")

	// ErrReleased is the end of a lease that its holder closed without naming another reason.
	ErrReleased = errors.New("renewal: lease released")

	// ErrClosed is returned when the Renewer has been closed, and ends the leases it still had.
	ErrClosed = errors.New("renewal: renewer closed")
)

// LostError tells why and when a lease ended against its holder's will.
// It matches ErrLost, the Spec's own Lost error, and the cause.
type LostError struct {
	Key   string
	ID    string
	Cause error     // ErrGone, ErrExpired or ErrUnwatched, joined with the backend's last failure if there was one
	Due   time.Time // the local deadline that was in force

	lossError error // Spec.Lost
}

// Error names the key, shortened if it is long, and the cause.
func (e *LostError) Error() string {
	what := ErrLost
	if e.lossError != nil {
		what = e.lossError
	}
	return fmt.Sprintf("%v: %s: %v", what, quote(e.Key), e.Cause)
}

// Unwrap lets errors.Is and errors.As reach ErrLost, the Spec's Lost error and the cause.
func (e *LostError) Unwrap() []error {
	errs := []error{ErrLost, e.Cause}
	if e.lossError != nil {
		errs = append(errs, e.lossError)
	}
	return errs
}

const argument = invalid.Package("renewal")

// quote returns a key as messages show it: in quotes, and shortened if it is long.
func quote(key string) string {
	const most = 128
	if len(key) > most {
		return fmt.Sprintf("%q...", key[:most])
	}
	return fmt.Sprintf("%q", key)
}
