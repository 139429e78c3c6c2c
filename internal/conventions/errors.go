package conventions

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Join is errors.Join, whose error is one line that names each cause once: messages of logs are one line, and the
// parts of a client often fail for one cause.
func Join(errs ...error) error {
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

// causes end many parts at the same time.
var causes = []string{context.Canceled.Error(), context.DeadlineExceeded.Error()}

func (l list) Error() string {
	var parts []string
	for _, err := range l {
		for line := range strings.Lines(err.Error()) { // of errors.Join
			parts = append(parts, strings.Split(strings.TrimSpace(line), "; ")...)
		}
	}
	for _, cause := range causes {
		parts = once(parts, cause)
	}
	var kept []string
	for i, part := range parts {
		said := func(other string) bool { return strings.HasSuffix(other, ": "+part) }
		if !slices.Contains(parts[:i], part) && !slices.ContainsFunc(parts, said) {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "; ")
}

// once leaves a cause at the end of the last part that has it: "a: cause; b: cause; cause" becomes "a; b: cause".
func once(parts []string, cause string) (without []string) {
	last, found := -1, false
	for _, part := range parts {
		rest, ends := strings.CutSuffix(": "+part, ": "+cause)
		if rest = strings.TrimPrefix(rest, ": "); ends {
			found = true
		}
		if rest == "" {
			continue // the cause alone
		}
		if ends {
			last = len(without)
		}
		without = append(without, rest)
	}
	switch {
	case last >= 0:
		without[last] += ": " + cause
	case found:
		without = append(without, cause)
	}
	return without
}

// Unwrap lets errors.Is and errors.As reach each of them.
func (l list) Unwrap() []error { return l }

// Also is err and another one, unless err is that already.
func Also(err, other error) error {
	if other == nil || errors.Is(err, other) {
		return err
	}
	return Join(err, other)
}
