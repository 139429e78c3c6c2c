package scripts

import (
	"errors"
	"fmt"
	"strings"
)

// MaxName is the longest name in bytes.
const MaxName = 64 << 10

// ErrName is wrapped by every error of CheckName.
var ErrName = errors.New("scripts: unusable name")

// NameError is the error of a refused name.
type NameError struct {
	Name   string
	Reason string
}

// Error quotes the name, shortened if it is long.
func (e *NameError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrName, Quote(e.Name), e.Reason)
}

// Unwrap returns ErrName.
func (e *NameError) Unwrap() error { return ErrName }

// Quote returns a name as messages show it: in quotes, and shortened if it is long.
func Quote(name string) string {
	const most = 128
	if len(name) > most {
		return fmt.Sprintf("%q...", name[:most])
	}
	return fmt.Sprintf("%q", name)
}

// CheckName returns a *NameError for a name under which the keys of one object
// would not share a cluster slot, and for names that are empty or longer than
// MaxName. Any other bytes are allowed: Redis takes names as they are.
//
// The slot of a key depends on its hash tag only: what stands between the first
// '{' and the next '}', if that is not empty. A name with such a tag keeps it in
// every derived key. A name without '{' becomes the tag itself, in braces, and so
// must hold no '}' that would end the tag early.
func CheckName(name string) error {
	refuse := func(reason string) error { return &NameError{Name: name, Reason: reason} }
	switch {
	case name == "":
		return refuse("empty")
	case len(name) > MaxName:
		return refuse(fmt.Sprintf("longer than %d bytes", MaxName))
	}
	_, tag, opened := strings.Cut(name, "{")
	if !opened {
		if strings.Contains(name, "}") {
			return refuse("a '}' without a '{' before it breaks the hash tag of derived keys")
		}
		return nil
	}
	switch strings.IndexByte(tag, '}') {
	case -1:
		return refuse("a '{' without a '}' after it is no hash tag")
	case 0:
		return refuse("an empty hash tag is no hash tag")
	}
	return nil
}

// PrefixName returns the key prefix:{name}, or prefix:name where name has a hash
// tag of its own, as Redisson forms it. The name must have passed CheckName.
func PrefixName(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// SuffixName returns the key {name}:suffix, or name:suffix where name has a hash
// tag of its own, as Redisson forms it. The name must have passed CheckName.
func SuffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}
