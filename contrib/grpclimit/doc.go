// Package grpclimit is interceptors of gRPC on ratelimit. On a server they reject calls over the limit with the
// code ResourceExhausted and a RetryInfo detail, which says when the call can be granted; on a client they wait
// for the limit before they send.
//
//	perPeer := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
//	server := grpclimit.New(perPeer, grpclimit.ByPeer)
//	grpc.NewServer(
//		grpc.UnaryInterceptor(server.Unary),
//		grpc.StreamInterceptor(server.Stream),
//	)
//
// A call, or the opening of a stream, costs what perPeer.AllowN costs. If that fails, as while Redis is down
// under the policy ratelimit.FailClosed, the code is Unavailable; WithFailed decides otherwise. NewAll decides
// by several limits in one step.
package grpclimit
