package grpclimit

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// ByPeer limits each IP address that connects to a server. It groups addresses as httplimit.ByRemoteAddr does: an IPv6
// address counts as its /64 network, because one host commonly has a whole /64. Behind a proxy all calls have the
// address of the proxy. Peers without an IP address, such as those of a Unix socket, are not limited, because they
// cannot be told apart.
func ByPeer(ctx context.Context, _ string) (key string, limited bool) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "", false
	}
	return httplimit.ByRemoteAddr(&http.Request{RemoteAddr: p.Addr.String()}) // it reads nothing else
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
