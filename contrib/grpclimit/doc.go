// Package grpclimit has gRPC interceptors on package ratelimit. On a server they reject calls over the limit
// with the code ResourceExhausted and a RetryInfo detail, which tells when the call can be granted. On a client
// they wait for the limit before they send a call.
//
//	perPeer := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
//	server := grpclimit.New(perPeer, grpclimit.ByPeer)
//	grpc.NewServer(
//		grpc.UnaryInterceptor(server.Unary),
//		grpc.StreamInterceptor(server.Stream),
//	)
//
// A call, or the opening of a stream, costs one call of perPeer.AllowN. If that fails, for example because
// Redis is down under the policy ratelimit.FailClosed, the code is Unavailable, unless WithFailed decides
// otherwise. NewPerKey gives each key its own limit, such as the plan of a tenant. NewAll decides by several
// limits in one step.
package grpclimit
