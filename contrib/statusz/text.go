package statusz

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxName  = 128 // bytes of a name or of metadata that a page shows
	maxError = 512
)

// shown returns a text as a page shows it: cut if it is long, and quoted if it has bytes that are no printable
// text. A name of Redis may have any.
func shown(text string, most int) string {
	end := ""
	if len(text) > most {
		text, end = text[:most], "…"
		for len(text) > most-utf8.UTFMax && !utf8.ValidString(text) { // cut between runes
			text = text[:len(text)-1]
		}
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	return text + end
}
