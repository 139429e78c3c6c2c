package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxPlainKey is the length up to which a key is stored in Redis as it is.
const maxPlainKey = 128

// redisKey is the key of Redis for a key of a Keyed limiter: prefix:{key}, with ":window" behind it for fixed
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
	var b strings.Builder
	switch {
	case tag != "":
		b.WriteString(prefix)
		b.WriteString(":{")
		writeKey(&b, tag)
		if algorithm == FixedWindow {
			b.WriteString("}:window:")
		} else {
			b.WriteString("}:key:")
		}
		writeKey(&b, key)
		return b.String()
	case algorithm == FixedWindow && isPlain(key):
		return prefix + ":{" + key + "}:window"
	case isPlain(key):
		return prefix + ":{" + key + "}"
	}
	b.WriteString(prefix)
	b.WriteString(":{")
	writeKey(&b, key)
	b.WriteString("}")
	if algorithm == FixedWindow {
		b.WriteString(":window")
	}
	return b.String()
}

// writeKey writes a key as it is stored in Redis.
func writeKey(b *strings.Builder, key string) {
	if len(key) <= maxPlainKey {
		escape(b, key)
	} else {
		escape(b, key[:32])
		sum := sha256.Sum256([]byte(key))
		b.WriteString("%sha256:")
		b.WriteString(hex.EncodeToString(sum[:]))
	}
}

func escape(b *strings.Builder, key string) {
	for i := range len(key) {
		switch c := key[i]; c {
		case '{':
			b.WriteString("%7B")
		case '}':
			b.WriteString("%7D")
		case '%':
			b.WriteString("%25")
		default:
			b.WriteByte(c)
		}
	}
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

// RedisKey returns the key in Redis of a key: what errors name, and what cogwheel limit takes. It does not
// talk to Redis.
func (k *Keyed) RedisKey(key string) string {
	return k.id(key).key
}
