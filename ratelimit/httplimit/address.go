package httplimit

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ByRemoteAddr limits each IP address that connects. An IPv6 address counts as its /64 network, which one
// host commonly has to itself (a link-local one counts by itself). Behind a proxy that is the proxy: use
// ByAddress. Connections without an IP address, such as those of a Unix socket, are not limited, because
// nothing tells their clients apart.
func ByRemoteAddr(r *http.Request) (key string, limited bool) {
	addr, ok := parseAddr(r.RemoteAddr)
	return grouping{ipv4: 32, ipv6: 64}.key(addr), ok
}

// ByForwarded limits each IP address that proxies in the trusted networks name in the field X-Forwarded-For:
// it is ByAddress(Address{Trusted: trusted}).
func ByForwarded(trusted ...netip.Prefix) KeyFunc { return ByAddress(Address{Trusted: trusted}) }

// Address says how the IP address of a client is found and grouped.
type Address struct {
	// Trusted are the networks of the proxies that are believed. A proxy on a Unix socket is trusted.
	Trusted []netip.Prefix

	// Field is where proxies write the address that they were reached from: X-Forwarded-For, which is the
	// default; Forwarded, as in RFC 7239; or a field with one address that the proxy replaces, such as
	// X-Real-IP or CF-Connecting-IP. Only this field is read, because a proxy passes on what clients write in
	// fields that it does not know. So it must be the one that your proxies write.
	Field string

	// IPv4Bits and IPv6Bits are how many bits of an address tell clients apart: 1 to 32, and 1 to 128.
	// The defaults, for 0, are 32 and 64, as one host commonly has an IPv6 network of 64 bits to itself;
	// use 56 or 48 for customers that have larger ones. A link-local address counts by itself.
	IPv4Bits, IPv6Bits int
}

// ByAddress limits each IP address that connects, or that proxies name. Only trusted proxies are believed:
// the key is the address that connects, unless it is a trusted proxy; then it is the last address in the
// field that is not a trusted proxy. So a client cannot choose its key, whatever it sends. If the field,
// read from its end, has no such address, or has something before it that is no address, the key is the
// trusted proxy that was read last: the empty key for a Unix socket. A field with one address counts as
// empty if it comes twice. Proxies must append to X-Forwarded-For and Forwarded, or replace them, as most
// do by default.
//
// It panics with a *cogwheel.InvalidError if a network, a number of bits or the name of the field is not
// valid.
func ByAddress(a Address) KeyFunc {
	g := grouping{ipv4: 32, ipv6: 64}
	for _, bits := range []struct {
		field   string
		n, most int
		to      *int
	}{{"Address.IPv4Bits", a.IPv4Bits, 32, &g.ipv4}, {"Address.IPv6Bits", a.IPv6Bits, 128, &g.ipv6}} {
		if bits.n < 0 || bits.n > bits.most {
			panic(argument.Error(bits.field, bits.n, fmt.Sprintf("must be 1 to %d", bits.most)))
		}
		if bits.n > 0 {
			*bits.to = bits.n
		}
	}
	field := http.CanonicalHeaderKey(cmp.Or(a.Field, "X-Forwarded-For"))
	if strings.ContainsFunc(field, func(c rune) bool { return c <= ' ' || c > '~' || c == ':' }) {
		panic(argument.Error("Address.Field", strconv.Quote(a.Field), "must be the name of a field"))
	}
	networks := trustedNetworks(a.Trusted)
	isTrusted := func(addr netip.Addr) bool {
		return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(addr.WithZone("")) })
	}
	return func(r *http.Request) (string, bool) {
		addr, ok := parseAddr(r.RemoteAddr)
		if ok && !isTrusted(addr) {
			return g.key(addr), true
		}
		for _, text := range slices.Backward(hops(field, r.Header.Values(field))) {
			hop, ok := parseAddr(strings.TrimSpace(text))
			if !ok {
				break
			}
			if addr = hop; !isTrusted(addr) {
				break
			}
		}
		return g.key(addr), true
	}
}

// trustedNetworks are the networks, those of IPv4 written as IPv4.
func trustedNetworks(trusted []netip.Prefix) []netip.Prefix {
	networks := make([]netip.Prefix, len(trusted))
	for i, network := range trusted {
		if network.Addr().Is4In6() && network.Bits() >= 96 {
			network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
		}
		if !network.IsValid() {
			panic(argument.Error("trusted network", network, "must be a valid network"))
		}
		networks[i] = network
	}
	return networks
}

// hops are the addresses that the lines of a field name, in order.
func hops(field string, lines []string) []string {
	switch field {
	case "X-Forwarded-For":
		return strings.Split(strings.Join(lines, ","), ",")
	case "Forwarded":
		return forwardedFor(strings.Join(lines, ","))
	}
	if len(lines) != 1 {
		return nil
	}
	return lines
}

// forwardedFor are the values of the parameters "for" in a field of RFC 7239, one for each element; empty for
// an element that has none, and for each one from an error on.
func forwardedFor(text string) (hops []string) {
	hop, name := "", true // name: what follows is the name of a parameter
	for text != "" {
		switch text[0] {
		case ' ', '\t':
			text = text[1:]
			continue
		case ',':
			hops, hop, name, text = append(hops, hop), "", true, text[1:]
			continue
		case ';':
			name, text = true, text[1:]
			continue
		}
		if !name {
			return append(hops, "") // something after a value
		}
		key, rest, found := strings.Cut(text, "=")
		if !found || strings.ContainsAny(key, ",;\" ") {
			return append(hops, "")
		}
		value, rest, ok := forwardedValue(rest)
		if !ok {
			return append(hops, "")
		}
		if strings.EqualFold(key, "for") {
			hop = value
		}
		text, name = rest, false
	}
	return append(hops, hop)
}

// forwardedValue reads a token or a quoted string, and returns what follows it.
func forwardedValue(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexAny(text, ",; \t")
		if end < 0 {
			end = len(text)
		}
		return text[:end], text[end:], !strings.Contains(text[:end], `"`)
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return b.String(), text[i+1:], true
		case '\\':
			if i++; i == len(text) {
				return "", "", false
			}
		}
		b.WriteByte(text[i])
	}
	return "", "", false
}

// parseAddr reads an IP address with or without a port. An IPv4 address that is written as an IPv6 one is the
// same address.
func parseAddr(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap(), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap(), err == nil
}

// grouping is how many bits of an address make its key.
type grouping struct{ ipv4, ipv6 int }

// key is the key of an address; empty if there is none.
func (g grouping) key(addr netip.Addr) string {
	bits := g.ipv4
	switch {
	case !addr.IsValid():
		return ""
	case addr.IsLinkLocalUnicast(): // all hosts of a link share the network
		return addr.String()
	case addr.Is6():
		bits = g.ipv6
	}
	return netip.PrefixFrom(addr, bits).Masked().Addr().String()
}
