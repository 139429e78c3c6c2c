package ratelimit

import "github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"

// Policy determines the decisions while Redis is down. The zero Policy is FailClosed. A Policy decides only in
// outages: a refusal of this client by Redis is ErrMisconfigured under every policy.
type Policy struct{ policy outage.Policy }

// FailClosed fails calls with ErrUnavailable. Waits continue until Redis is back or their context ends.
func FailClosed() Policy { return Policy{} }

// FailOpen grants every request, except those that the call itself refuses: a Limiter and an All still refuse a
// request above the burst.
func FailOpen() Policy { return Policy{outage.Policy{Kind: outage.Open}} }

// LocalShare grants one n-th of the limit in each process, from memory; n, 1 or more, is the number of
// processes. The burst of the share is rounded down but at least 1; a request for more is denied. The share
// counts as GCRA does. A StoredLimiter fails closed while this process does not know its limit: it learns the
// limit from decisions of Redis, and forgets it a minute after the last decision, but not during an outage.
//
// A process counts up to 65536 keys one by one. Further keys share 256 counts, so together they get less, never
// more. A share does not begin again with each outage: permits that were granted from it return at the rate of
// the share, whether Redis is up or down.
func LocalShare(n int64) Policy { return Policy{outage.Policy{Kind: outage.Share, Share: n}} }
