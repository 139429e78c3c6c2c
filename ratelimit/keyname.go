package ratelimit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// maxPlainKey is the length up to which a key is stored in Redis unhashed.
const maxPlainKey = 128

// redisKey returns the Redis key for a key of a Limiter: prefix:{key}, followed by ":window" or ":sliding" for
// the algorithms with windows; with a hash tag prefix:{tag}:key:key, prefix:{tag}:window:key or
// prefix:{tag}:sliding:key. Keys may contain any bytes, and clients may choose them, so
//
//   - braces and percent signs in a key are escaped as %7B, %7D and %25. A prefix has no braces. So the text
//     before the first brace is the prefix, the text between the braces is the key, and no two pairs of prefix
//     and key collide;
//   - a key of more than 128 bytes becomes its first 32 bytes, escaped, and "%sha256:" with the SHA-256 of the
//     whole key in hex. In an escaped key no s follows a percent sign, so such a key collides only with a key
//     with the same hash, and no two such keys are known;
//   - the braces are a hash tag, so in a cluster the slot depends on the key alone: keys spread over the slots,
//     and one key has the same slot under every prefix. A tag is written as a key is, so it has the slot of
//     that key.
func redisKey(prefix, tag, key string, algorithm Algorithm) string {
	return string(appendRedisKey(nil, prefix, tag, key, algorithm))
}

// appendRedisKey appends the Redis key to b.
func appendRedisKey(b []byte, prefix, tag, key string, algorithm Algorithm) []byte {
	b = append(append(b, prefix...), ":{"...)
	word := algo.Kinds[algorithm].Word
	switch {
	case tag != "":
		b = append(append(appendKey(b, tag), "}:"...), cmp.Or(word, "key")...)
		return appendKey(append(b, ':'), key)
	case word != "":
		return append(append(appendKey(b, key), "}:"...), word...)
	}
	return append(appendKey(b, key), '}')
}

// appendKey appends a key in the form in which it is stored in Redis.
func appendKey(b []byte, key string) []byte {
	switch {
	case isPlain(key):
		return append(b, key...)
	case len(key) <= maxPlainKey:
		return escape(b, key)
	}
	sum := sha256.Sum256([]byte(key))
	return hex.AppendEncode(append(escape(b, key[:32]), "%sha256:"...), sum[:])
}

func escape(b []byte, key string) []byte {
	for i := range len(key) {
		switch c := key[i]; c {
		case '{':
			b = append(b, "%7B"...)
		case '}':
			b = append(b, "%7D"...)
		case '%':
			b = append(b, "%25"...)
		default:
			b = append(b, c)
		}
	}
	return b
}

// isPlain reports whether a key is stored in Redis unchanged.
func isPlain(key string) bool {
	if len(key) > maxPlainKey {
		return false
	}
	for i := range len(key) {
		if c := key[i]; c == '{' || c == '}' || c == '%' {
			return false
		}
	}
	return true
}

// RedisKey returns the key in Redis for a key of the Limiter, as in errors and for the command cogwheel limit.
// It does not talk to Redis.
func (k *Limiter) RedisKey(key string) string {
	return k.id(key).Key
}
