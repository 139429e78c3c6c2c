package renewal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

var (
	// ErrLost is matched by every loss of a lease. The concrete error is a *LostError, with the cause ErrGone,
	// ErrExpired or ErrUnwatched. The end of a lease by Lease.Close or Renewer.Close is no loss.
	ErrLost = errors.New("renewal: lease lost")

	// ErrGone is the cause of a loss that the backend reported, or the holder by Lease.MarkLost: the lease had been
	// removed or had expired there.
	ErrGone = errors.New("renewal: the backend no longer knows the lease")

	// ErrExpired is the cause of a loss at the local deadline: no renewal was confirmed in time.
	ErrExpired = errors.New("renewal: the deadline passed without a confirmed renewal")

	// ErrUnwatched is the cause of a loss by the wheel: it was stopped. Without an entry, the end of the lease could
	// not be announced.
	ErrUnwatched = errors.New("renewal: the wheel no longer watches the lease")

	// ErrReleased is the Err of a lease that its holder closed without a reason.
	ErrReleased = errors.New("renewal: lease released")

	// ErrClosed is returned after Renewer.Close. It is also the Err of leases that Renewer.Close ended.
	ErrClosed = errors.New("renewal: renewer closed")
)

// LostError describes a loss: why and when a lease ended against its holder's will. It matches ErrLost, the
// Lost error of the Spec, and the cause.
type LostError struct {
	Key   string
	ID    string
	Cause error     // ErrGone, ErrExpired or ErrUnwatched, joined with the backend's last failure if there was one
	Due   time.Time // the local deadline at the time of the loss

	lossError error // Spec.Lost
}

// Error returns a line with the key, shortened if it is long, and the cause.
func (e *LostError) Error() string {
	what := ErrLost
	if e.lossError != nil {
		what = e.lossError
	}
	return fmt.Sprintf("%v: %s: %v", what, quote(e.Key), e.Cause)
}

// Unwrap returns ErrLost, the Lost error of the Spec if there is one, and the cause.
func (e *LostError) Unwrap() []error {
	errs := []error{ErrLost, e.Cause}
	if e.lossError != nil {
		errs = append(errs, e.lossError)
	}
	return errs
}

const argument = conventions.Package("renewal")

// quote returns a key in the form of messages: in quotes, and shortened if it is long.
func quote(key string) string {
	const most = 128
	if len(key) > most {
		return fmt.Sprintf("%q...", key[:most])
	}
	return fmt.Sprintf("%q", key)
}

// readable returns an id in the form of logs: in hex if it is not text, as the ids of permits are shown
// elsewhere.
func readable(id string) string {
	if strings.ContainsFunc(id, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return hex.EncodeToString([]byte(id))
	}
	return id
}
