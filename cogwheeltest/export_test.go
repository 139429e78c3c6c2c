package cogwheeltest

// Requests cuts what a client has sent, in chunks, into commands.
func Requests(chunks ...[]byte) (words [][]string, raw []byte) {
	var partial []byte
	for _, chunk := range chunks {
		partial = append(partial, chunk...)
		for {
			r, rest, ok := cutRequest(partial)
			if !ok {
				break
			}
			words, raw, partial = append(words, r.words), append(raw, r.raw...), rest
		}
	}
	return words, raw
}

// PlainError is what clients see of a reply.
func PlainError(reply string) string { return string(plainError([]byte(reply))) }
