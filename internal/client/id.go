package client

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID returns the id by which a Client is known in Redis: 32 hex digits, unique for ever.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
