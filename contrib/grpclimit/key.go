package grpclimit

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// ByPeer limits each IP address that connects to a server. An IPv6 address counts as its /64 network, because
// one host commonly has a whole /64; a link-local address counts by itself. Behind a proxy all calls have the
// address of the proxy. Peers without an IP address, such as those of a Unix socket, are not limited, because
// they cannot be told apart.
func ByPeer(ctx context.Context, _ string) (key string, limited bool) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "", false
	}
	var addr netip.Addr
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		addr = tcp.AddrPort().Addr()
	} else if withPort, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
		addr = withPort.Addr()
	} else {
		return "", false
	}
	addr = addr.Unmap()
	switch {
	case !addr.IsValid():
		return "", false
	case addr.Is6() && !addr.IsLinkLocalUnicast():
		return netip.PrefixFrom(addr, 64).Masked().Addr().String(), true
	}
	return addr.String(), true
}

// ByMethod limits each method, for all clients together.
func ByMethod(_ context.Context, method string) (key string, limited bool) { return method, true }

// ByMetadata limits by the value of one entry of the metadata that a server receives, for example one that
// authentication has checked. Calls without the entry, or with several values, share the empty key.
func ByMetadata(name string) KeyFunc {
	name = strings.ToLower(name)
	return func(ctx context.Context, _ string) (key string, limited bool) {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) == 1 {
			return values[0], true
		}
		return "", true
	}
}
