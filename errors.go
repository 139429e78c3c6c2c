package cogwheel

import (
	"errors"
	"fmt"
)

// ErrInvalid matches every *InvalidError.
var ErrInvalid = errors.New("invalid argument")

// InvalidError describes an argument that a package of this module has refused. The call changed nothing and
// sent nothing to Redis. It matches ErrInvalid.
type InvalidError struct {
	Package string // the package of the called function, for example "redislock"
	Field   string // the argument or option, for example "name" or "WithLease"
	Value   any    // the argument; a long name is shortened
	Reason  string // the rule that the value breaks
}

// Error returns the error as one line.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s %v: %s", e.Package, e.Field, e.Value, e.Reason)
}

// Unwrap returns ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }
