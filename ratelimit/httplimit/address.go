package httplimit

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ByRemoteAddr limits each IP address that connects. An IPv6 address counts as its /64 network, which one
// host commonly has to itself (a link-local one counts by itself). Behind a proxy that is the proxy: use
// ByForwarded. Connections without an IP address, such as those of a Unix socket, are not limited, because
// nothing tells their clients apart.
func ByRemoteAddr(r *http.Request) (key string, limited bool) {
	addr, ok := parseAddr(r.RemoteAddr)
	return addressKey(addr), ok
}

// ByForwarded limits each IP address that proxies name in the field X-Forwarded-For, where every proxy
// appends the address that it was reached from. Only the proxies in the trusted networks are believed: the
// key is the last address of the field that is not one of them, or the address that connects if it is none
// itself. So a client cannot choose its key, whatever it sends. A proxy on a Unix socket is trusted. If a
// trusted proxy names no address, or something that is none, the proxy itself is limited. IPv6 addresses
// count as in ByRemoteAddr.
//
// Proxies must append to X-Forwarded-For, or replace it, which is their default; other fields, such as
// Forwarded, are not read, for a proxy that does not know them passes on what clients write there.
// ByForwarded panics with a *ratelimit.InvalidError if a network is not valid.
func ByForwarded(trusted ...netip.Prefix) KeyFunc {
	networks := make([]netip.Prefix, len(trusted))
	for i, network := range trusted {
		if network.Addr().Is4In6() && network.Bits() >= 96 {
			network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
		}
		if !network.IsValid() {
			panic(argument.Error("ByForwarded", network, "must be a valid network"))
		}
		networks[i] = network
	}
	isTrusted := func(addr netip.Addr) bool {
		for _, network := range networks {
			if network.Contains(addr.WithZone("")) {
				return true
			}
		}
		return false
	}
	return func(r *http.Request) (string, bool) {
		addr, ok := parseAddr(r.RemoteAddr)
		if ok && !isTrusted(addr) {
			return addressKey(addr), true
		}
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for _, text := range slices.Backward(hops) {
			hop, ok := parseAddr(strings.TrimSpace(text))
			if !ok {
				break
			}
			if addr = hop; !isTrusted(addr) {
				break
			}
		}
		return addressKey(addr), true
	}
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

// addressKey is the key of an address; empty if there is none.
func addressKey(addr netip.Addr) string {
	switch {
	case !addr.IsValid():
		return ""
	case addr.IsLinkLocalUnicast(): // all hosts of a link share the network
		return addr.String()
	case addr.Is6():
		return netip.PrefixFrom(addr, 64).Masked().Addr().String()
	}
	return addr.String()
}
