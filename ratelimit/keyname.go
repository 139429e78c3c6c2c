package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
)

// maxPlainKey is the length up to which a key is stored in Redis as it is.
const maxPlainKey = 128

// redisKey is the key of Redis for a key of a Limiter: prefix:{key}, with ":window" behind it for fixed
// windows; or with a hash tag prefix:{tag}:key:key, or prefix:{tag}:window:key. Keys may hold any bytes and
// come from strangers, so
//
//   - braces and percent signs in a key are escaped as %7B, %7D and %25. A prefix has no braces, so what
//     stands before the first of them is the prefix, what stands between is the key, and no two pairs of
//     prefix and key meet;
//   - a key of more than 128 bytes becomes its first 32 bytes, escaped, and "%sha256:" with the SHA-256 of
//     all of it in hex. In no escaped key does an s follow a percent sign, so that it meets no other but one
//     with the same hash, and no two of those are known;
//   - the braces are a hash tag, so that in a cluster the slot depends on the key alone: keys spread over the
//     slots, and one key has the same slot under every prefix. A tag is written as a key is, so it has the
//     slot of that key.
func redisKey(prefix, tag, key string, algorithm Algorithm) string {
	return string(appendRedisKey(nil, prefix, tag, key, algorithm))
}

// appendRedisKey appends the key of Redis to b.
func appendRedisKey(b []byte, prefix, tag, key string, algorithm Algorithm) []byte {
	b = append(append(b, prefix...), ":{"...)
	switch {
	case tag != "" && algorithm == FixedWindow:
		return appendKey(append(appendKey(b, tag), "}:window:"...), key)
	case tag != "":
		return appendKey(append(appendKey(b, tag), "}:key:"...), key)
	case algorithm == FixedWindow:
		return append(appendKey(b, key), "}:window"...)
	}
	return append(appendKey(b, key), '}')
}

// appendKey appends a key as it is stored in Redis.
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

// isPlain reports whether a key is stored in Redis as it is.
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

// RedisKey returns the key in Redis of a key: errors name it, and the command cogwheel limit takes it. It
// does not talk to Redis.
func (k *Limiter) RedisKey(key string) string {
	return k.id(key).key
}
