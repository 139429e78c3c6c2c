// Package invalid is the error of an argument that was refused, which all packages of the library share.
package invalid

import (
	"errors"
	"fmt"
	"reflect"
)

// Err matches every *Error.
var Err = errors.New("invalid argument")

// Error names an argument that was refused. It matches Err.
type Error struct {
	Package string // of the function that was called, for example "redislock"
	Field   string // what was refused, for example "name" or "WithLease"
	Value   any    // the value given; a long name is shortened
	Reason  string // why, or what would have been accepted
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s %v: %s", e.Package, e.Field, e.Value, e.Reason)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return Err }

// Package makes the errors of one package.
type Package string

// Error returns the error of an argument.
func (p Package) Error(field string, value any, reason string) *Error {
	return &Error{Package: string(p), Field: field, Value: value, Reason: reason}
}

// Nil returns the error of an argument that must not be nil.
func (p Package) Nil(field string) *Error { return p.Error(field, "nil", "must not be nil") }

// Client returns an error unless a client is one: neither nil nor a nil pointer in an interface.
func (p Package) Client(rdb any) error {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return p.Nil("client")
	}
	return nil
}
