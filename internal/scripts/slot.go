package scripts

import "strings"

// slots is the number of slots of a cluster.
const slots = 1 << 14

// HashTag returns the part of a key that decides its slot in a cluster: the text between the first '{' and the next
// '}', or the whole key if that text is empty or there are no such braces.
func HashTag(key string) string {
	if _, rest, opened := strings.Cut(key, "{"); opened {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			return tag
		}
	}
	return key
}

// Slot returns the slot of a key in a cluster: the CRC16 of its hash tag (CCITT, XModem), modulo 16384.
func Slot(key string) int {
	var crc uint16
	for _, c := range []byte(HashTag(key)) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}
