package client

import (
	"crypto/rand"
	"fmt"
	"strings"
)

// NewUUID returns a version 4 UUID in text form: the id of a Client in the form that Redisson gives its clients, by
// which a holder of a lock is recognized.
func NewUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// NewID returns the id by which a Client is known in Redis: a UUID without its hyphens, 32 hex digits.
func NewID() string { return strings.ReplaceAll(NewUUID(), "-", "") }
