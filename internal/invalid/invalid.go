// Package invalid constructs the *cogwheel.InvalidError of each package.
package invalid

import (
	"reflect"

	"github.com/cogwheel-go/cogwheel"
)

// Package is the name of the package that refuses an argument.
type Package string

// Error returns the error of an argument.
func (p Package) Error(field string, value any, reason string) *cogwheel.InvalidError {
	return &cogwheel.InvalidError{Package: string(p), Field: field, Value: value, Reason: reason}
}

// Nil returns the error of an argument that must not be nil.
func (p Package) Nil(field string) *cogwheel.InvalidError {
	return p.Error(field, "nil", "must not be nil")
}

// Client returns an error if rdb is nil or a nil pointer in an interface.
func (p Package) Client(rdb any) error {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return p.Nil("client")
	}
	return nil
}
