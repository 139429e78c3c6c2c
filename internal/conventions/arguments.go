// Package conventions has what the packages have in common for their callers, as CONTRIBUTING.md says: the errors
// of arguments, options that are applied, why a context has ended, contexts that end with a hold, and errors of
// several.
package conventions

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

// MustCall panics if the function that is to be called later is nil: its caller gets no error.
func (p Package) MustCall(isNil bool) {
	if isNil {
		panic(p.Nil("function"))
	}
}

// Set stores the value of an option in the config, unless it is nil.
func Set[T any](p Package, option string, field **T, value *T) error {
	if value == nil {
		return p.Nil(option)
	}
	*field = value
	return nil
}

// Apply applies options to a config in their order, up to the first error. It refuses nil options.
func Apply[C, O any](p Package, config *C, opts []O, apply func(O, *C) error) error {
	for i, o := range opts {
		if any(o) == nil {
			return p.Error("option", i, "is nil")
		}
		if err := apply(o, config); err != nil {
			return err
		}
	}
	return nil
}
