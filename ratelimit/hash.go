package ratelimit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// minSecret is the shortest secret of HashKeys, in bytes.
const minSecret = 16

// HashKeys returns a function that replaces keys which must not be read by others, such as API keys and e-mail
// addresses: keys are in Redis and in the texts of errors. Its result is 128 bits of HMAC-SHA-256, as 22 characters of
// the URL-safe alphabet of base64. Without the secret, nobody can test a guess, as for a hash alone. All processes that
// share a limit need the same secret: with another one, each key has another limit.
//
//	hash := ratelimit.HashKeys(secret)
//	result, err := perKey.Allow(ctx, hash(apiKey))
//
// The secret has 16 bytes or more, which should be random; HashKeys copies it. It panics with a *cogwheel.InvalidError
// for a shorter one. The function is safe for concurrent use.
func HashKeys(secret []byte) (hash func(key string) string) {
	if len(secret) < minSecret {
		panic(argument.Error("length of the secret", len(secret), fmt.Sprintf("must be at least %d bytes", minSecret)))
	}
	secret = bytes.Clone(secret)
	return func(key string) string {
		h := hmac.New(sha256.New, secret)
		_, _ = h.Write([]byte(key)) // it never fails
		return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
	}
}
