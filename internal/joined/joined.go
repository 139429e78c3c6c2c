// Package joined makes one error of several, on one line.
package joined

import (
	"errors"
	"strings"
)

// Errors is errors.Join, whose error is one line: messages of logs are.
func Errors(errs ...error) error {
	var all list
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type list []error

func (l list) Error() string {
	texts := make([]string, len(l))
	for i, err := range l {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap lets errors.Is and errors.As reach each of them.
func (l list) Unwrap() []error { return l }

// Also is err and another one, unless err is that already.
func Also(err, other error) error {
	if other == nil || errors.Is(err, other) {
		return err
	}
	return Errors(err, other)
}
