package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Class is the meaning of a failed call for its caller. All packages share one table of classes.
type Class uint8

const (
	// Answered is no failure: the server executed the call.
	Answered Class = iota
	// ContextEnded is the end of a context that the caller chose. It says nothing about Redis.
	ContextEnded
	// Unavailable is an outage: nothing answered, or the server, or something before it, says that it cannot serve now.
	// Every answer that is not in the table counts as one: proxies and managed services have their own texts. It tends
	// to pass without a change to the program or to its rights, so a policy may decide meanwhile.
	Unavailable
	// LoginRefused is a server that does not accept the user or the password of a connection, or asks for them. While a
	// password is rotated it passes; so it is an outage for what has begun, for as long as a lease lasts: see
	// [Endurance]. For a call that begins it is an error, as Misconfigured is: a policy that grants would hide it.
	LoginRefused
	// Misconfigured is a mismatch of client and server: missing rights, a certificate that does not verify, a command
	// that the server does not have, a reply that no script returns, a closed client. It does not pass by itself. It is
	// always an error, because a policy that grants would hide it.
	Misconfigured
	// KeyFault is a key that holds an object of another kind.
	KeyFault
	// Fault is an error that a script of the library raises on purpose, or a fault of the library: an error in a
	// script, or arguments that a command does not take. It does not pass by itself. It is always an error, because a
	// fault must not open a limit.
	Fault
)

func (c Class) String() string {
	names := [...]string{
		"answered", "context ended", "unavailable", "login refused", "misconfigured", "key fault", "fault",
	}
	return names[c]
}

// codes has the error codes of servers that tell why a call was refused. No such call was executed.
var codes = map[string]Class{
	"LOADING":     Unavailable, // the server has just started
	"READONLY":    Unavailable, // a replica, as in a failover
	"MASTERDOWN":  Unavailable,
	"CLUSTERDOWN": Unavailable,
	"TRYAGAIN":    Unavailable, // a slot is on the move
	"MOVED":       Unavailable,
	"ASK":         Unavailable,
	"OOM":         Unavailable,
	"NOREPLICAS":  Unavailable,
	"MISCONF":     Unavailable, // the server cannot write to its disk
	"BUSY":        Unavailable, // a script is running
	"UNKILLABLE":  Unavailable,
	"NOSCRIPT":    Unavailable, // the server has forgotten the script

	"NOAUTH":    LoginRefused,
	"WRONGPASS": LoginRefused,

	"NOPERM":    Misconfigured,
	"NOPROTO":   Misconfigured,
	"DENIED":    Misconfigured, // protected mode
	"CROSSSLOT": Misconfigured,

	"WRONGTYPE": KeyFault,
	"WRONGKIND": KeyFault, // as the following, an error that scripts of the library raise

	"NOTCONFIGURED": Fault,
	"OLDFORM":       Fault,
	"OVERALL":       Fault,
	"PERCLIENT":     Fault,
	"STALE":         Fault,
}

// texts has parts of answers without such a code, in the order in which they are searched.
var texts = []struct {
	part  string // in lower case
	class Class
}{
	{"max number of clients", Unavailable},
	{"attempted to access a non local key", Unavailable},                        // a slot is on the move
	{"undeclared keys were accessed during rehashing of the slot", Unavailable}, // the same, of several keys
	{"attempted to access a slot not served", Unavailable},                      // CLUSTERDOWN, of a command
	{"while the cluster is down", Unavailable},                                  // likewise
	{"script killed by user", Unavailable},                                      // it had not written

	{"without any password configured", LoginRefused},
	{"but no password is set", LoginRefused},
	{"invalid password", LoginRefused},
	{"invalid username-password", LoginRefused},
	{"unauthenticated", LoginRefused},

	{"the user executing the script can't", Misconfigured}, // NOPERM of a command inside a script, up to Redis 7.0
	{"acl failure in script", Misconfigured},               // the same from Redis 7.2 on
	{"unknown redis command", Misconfigured},
	{"unknown command", Misconfigured},
	{"unknown subcommand", Misconfigured},
	{"unsupported command", Misconfigured}, // Envoy
	{"not support for", Misconfigured},     // Tair: a command that the account may not run
	{"not allowed from script", Misconfigured},
	{"db index", Misconfigured},
	{"select is not allowed", Misconfigured},
	{"illegal address", Misconfigured},                   // Tair: of the client
	{"is not in whitelist", Misconfigured},               // the same of its proxy
	{"keys must in same slot", Misconfigured},            // Tair
	{"keys must be in same slot", Misconfigured},         // Tair
	{"number of keys can't be", Misconfigured},           // Tair: a script without keys
	{"script tried accessing undeclared", Misconfigured}, // Dragonfly

	{"wrong number of arg", Fault},
	{"syntax error", Fault},
	{"invalid request", Fault}, // Envoy: too few arguments
	{"is not an integer", Fault},
	{"is not a valid float", Fault},
	{"is out of range", Fault},
	{"would overflow", Fault},
	{"would produce nan", Fault},
	{"invalid expire time", Fault},
	{"size exceeded", Fault}, // Upstash: of a request, a key or a value
	{" script", Fault},       // whatever else a server says about one: it is ours
	{"user_script", Fault},
}

// Classify sorts the error of a call. ctx is the context of its caller.
func Classify(ctx context.Context, err error) Class {
	if err != nil && !Refused(err) && ctx.Err() != nil {
		return ContextEnded
	}
	return classify(err)
}

// classify is Classify without a context.
func classify(err error) Class {
	if err == nil {
		return Answered
	}
	if text, inScript, refused := answer(err); refused {
		class, _ := classOf(text, inScript)
		return class
	}
	switch {
	case misconfigured(err):
		return Misconfigured
	case loginAtSentinels(err):
		return LoginRefused
	}
	return Unavailable
}

// noMaster begins the error of a client of Sentinels that names no primary. It wraps what each of them has answered,
// which is no answer to the call: that the master is not known is the nil of a Sentinel.
const noMaster = "redis: all sentinels specified in configuration are unreachable"

// answer returns the text of an answer of the server to a call, and whether a script has raised it. ok is false if err
// is none.
func answer(err error) (text string, inScript, ok bool) {
	text, inScript, ok = scripts.Answer(err)
	return text, inScript, ok && !strings.Contains(err.Error(), noMaster)
}

// loginAtSentinels reports whether a Sentinel has refused the login, and none has named the primary.
func loginAtSentinels(err error) bool {
	text := err.Error()
	return strings.Contains(text, noMaster) && (strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS"))
}

// classOf sorts an answer of a server. known is false if the table has no such answer, which may be that of a proxy
// about a call that the server has executed.
func classOf(text string, inScript bool) (class Class, known bool) {
	if text == redis.Nil.Error() {
		return Answered, true
	}
	code, _, _ := strings.Cut(text, " ")
	if class, known := codes[code]; known {
		return class, true
	}
	text = strings.ToLower(text)
	for _, t := range texts {
		if strings.Contains(text, t.part) {
			return t.class, true
		}
	}
	if inScript {
		return Fault, true
	}
	return Unavailable, false
}

// misconfigured reports whether a call without an answer of the server failed for a reason that does not pass by
// itself: its client is closed, TLS refused the connection, or the reply was one that no script returns.
func misconfigured(err error) bool {
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	return errors.Is(err, redis.ErrClosed) || errors.Is(err, scripts.ErrReply) ||
		errors.As(err, &certificate) || errors.As(err, &authority) ||
		errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &record) || errors.As(err, &alert)
}
