package httplimit

import (
	"cmp"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ByRemoteAddr limits each IP address that connects. An IPv6 address counts as its /64 network, because one
// host commonly has a whole /64; a link-local address counts by itself. For IPv4 addresses in IPv6 addresses see
// Address. Behind a proxy all requests have the address of the proxy: use ByAddress. Connections without an IP address,
// such as those of a Unix socket, are not limited, because their clients cannot be told apart.
func ByRemoteAddr(r *http.Request) (key string, limited bool) {
	addr, ok := parseAddr(r.RemoteAddr)
	return grouping{ipv4: 32, ipv6: 64}.key(addr), ok
}

// ByForwarded limits each IP address that proxies in the trusted networks report in the field X-Forwarded-For:
// it is ByAddress(Address{Trusted: trusted}). For the field Forwarded set Address.Field. Without networks it trusts
// proxies on a Unix socket alone, and limits other requests as ByRemoteAddr does.
func ByForwarded(trusted ...netip.Prefix) KeyFunc { return ByAddress(Address{Trusted: trusted}) }

// Address determines how ByAddress finds and groups the IP addresses of clients.
//
// IPv6 addresses that are made from an IPv4 address count by that, because a /64 network of them is not one host:
//
//   - IPv4-mapped addresses, those of SIIT (::ffff:0:0:0/96) and of NAT64 (64:ff9b::/96) count as the IPv4 address.
//     Only translators of your network use them, so a client cannot choose one.
//   - Addresses of 6to4 (2002::/16) and Teredo (2001::/32) count by the IPv4 address of the client, but not as that
//     address: a relay on the Internet may forge them, and must not use up the limit of a host.
//   - Addresses of the prefix for NAT64 of a local network (64:ff9b:1::/48) count one by one: the place of the IPv4
//     address is not known. Another prefix for NAT64 is a network as any other: it needs a KeyFunc of yours.
type Address struct {
	// Trusted has the networks of the trusted proxies. A proxy on a Unix socket is always trusted.
	Trusted []netip.Prefix

	// Field is the field in which proxies report the address that connected to them: X-Forwarded-For, which is
	// the default; Forwarded, as in RFC 7239; or a field with one address that the proxy replaces, such as
	// X-Real-IP or CF-Connecting-IP. It must be the field that your proxies write, and no other field is read:
	// a proxy passes on other fields as the client wrote them.
	Field string

	// IPv4Bits and IPv6Bits are the number of leading bits of an address that tell clients apart: 1 to 32, and
	// 1 to 128. The defaults, for 0, are 32 and 64, because one host commonly has a whole IPv6 network of 64
	// bits; use 56 or 48 for customers with larger networks. A link-local address counts by itself. IPv4Bits are
	// also those of an IPv4 address in an IPv6 address.
	IPv4Bits, IPv6Bits int
}

// ByAddress limits each IP address that connects, or that trusted proxies report. The key is the address that
// connects. If that is a trusted proxy, the key is the last address in the field that is not a trusted proxy.
// So a client cannot choose its key, whatever it sends.
//
// The field is read from its end. If it has no such address, or something that is no address comes first, the
// key is the trusted proxy that was read last: the empty key for a Unix socket. A field with one address counts
// as empty if it comes twice. Proxies must append to X-Forwarded-For and Forwarded, or replace them, as most do
// by default.
//
// ByAddress panics with a *cogwheel.InvalidError if a network, a number of bits or the name of the field is
// invalid.
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
		for text := range hops(field, r.Header.Values(field)) {
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

// trustedNetworks has the networks of the trusted proxies, those of IPv4 written as IPv4.
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

// hops yields the addresses in the lines of a field, from the last one on, and an empty address for an element
// that cannot be read. It reads no more than its caller wants: the part that a client has sent comes before the
// part that proxies add, and may be long, or malformed.
func hops(field string, lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		isForwarded := field == "Forwarded"
		if !isForwarded && field != "X-Forwarded-For" {
			if len(lines) == 1 {
				yield(lines[0])
			}
			return
		}
		for _, line := range slices.Backward(lines) {
			for more := true; more; {
				var element string
				line, element, more = cutLast(line, isForwarded)
				if isForwarded {
					element = forwardedFor(element)
				}
				if !yield(element) {
					return
				}
			}
		}
	}
}

// cutLast cuts the last element off a list; more is false if it is also the first. Commas in quoted strings do
// not separate.
func cutLast(list string, quotes bool) (before, last string, more bool) {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == ',' && !quoted:
			return list[:i], list[i+1:], true
		case list[i] == '"' && quotes:
			backslashes := i - len(strings.TrimRight(list[:i], `\`))
			quoted = !quoted || backslashes%2 == 1
		}
	}
	return "", list, false
}

// forwardedFor returns the value of the parameter "for" of an element of RFC 7239, or "" if it has none or is
// malformed.
func forwardedFor(element string) (hop string) {
	name := true // the name of a parameter follows
	for element != "" {
		switch element[0] {
		case ' ', '\t':
			element = element[1:]
			continue
		case ';':
			name, element = true, element[1:]
			continue
		}
		key, rest, found := strings.Cut(element, "=")
		if !name || !found || strings.ContainsAny(key, ",;\" ") {
			return ""
		}
		value, rest, ok := forwardedValue(rest)
		if !ok {
			return ""
		}
		if strings.EqualFold(key, "for") {
			hop = value
		}
		element, name = rest, false
	}
	return hop
}

// forwardedValue reads a token or a quoted string, and returns the rest.
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

// parseAddr reads an IP address with or without a port. An IPv4 address written as IPv6 is the same address.
func parseAddr(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap(), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap(), err == nil
}

// grouping is the number of bits of an address that make its key.
type grouping struct{ ipv4, ipv6 int }

// Networks whose addresses are made from IPv4 addresses.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")       // RFC 4380
)

// key returns the key of an address, or "" for none.
func (g grouping) key(addr netip.Addr) string {
	if nat64.Contains(addr) || siit.Contains(addr) {
		bytes := addr.As16()
		addr = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	bits := g.ipv4
	switch {
	case !addr.IsValid():
		return ""
	case addr.IsLinkLocalUnicast(), localNAT64.Contains(addr): // all hosts of a link share the network
		return addr.String()
	case sixToFour.Contains(addr): // the address of the site follows
		bits += sixToFour.Bits()
	case teredo.Contains(addr): // a client chooses its server and its port
		bytes := addr.As16()
		client := [16]byte{0: 0x20, 1: 0x01}
		for i := 12; i < 16; i++ {
			client[i] = ^bytes[i]
		}
		addr, bits = netip.AddrFrom16(client), bits+96
	case addr.Is6():
		bits = g.ipv6
	}
	return netip.PrefixFrom(addr, bits).Masked().Addr().String()
}
