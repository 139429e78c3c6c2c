package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Class is the meaning of a failed call for its caller. Locks, limiters and semaphores share one table of classes.
type Class uint8

const (
	// Answered is no failure: the server executed the call.
	Answered Class = iota
	// ContextEnded is the end of a context that the caller chose. It says nothing about Redis.
	ContextEnded
	// Unavailable is an outage: nothing answered, or the server says that it cannot serve now. It tends to
	// pass without a change to the program or to its rights, so a policy may decide meanwhile.
	Unavailable
	// Misconfigured is a mismatch of client and server: missing rights, wrong credentials, a certificate that does not
	// verify, a command that the server does not have, a reply that no script returns, a closed client. It does not
	// pass by itself. It is always an error, because a policy that grants would hide it.
	Misconfigured
	// KeyFault is a key that holds an object of another kind.
	KeyFault
	// OtherRefusal is any other answer of the server, such as an error that a script returns on purpose.
	OtherRefusal
)

func (c Class) String() string {
	return [...]string{"answered", "context ended", "unavailable", "misconfigured", "key fault", "other refusal"}[c]
}

// codes has the error codes of servers that tell why a call was refused.
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

	"NOAUTH":    Misconfigured,
	"WRONGPASS": Misconfigured,
	"NOPERM":    Misconfigured,
	"NOPROTO":   Misconfigured,
	"DENIED":    Misconfigured, // protected mode
	"CROSSSLOT": Misconfigured,

	"WRONGTYPE": KeyFault,
	"WRONGKIND": KeyFault, // an error of the library's scripts
}

// texts has parts of answers with the general code ERR.
var texts = []struct {
	part  string // in lower case
	class Class
}{
	{"max number of clients", Unavailable},
	{"attempted to access a non local key", Unavailable},   // a slot is on the move
	{"while the cluster is down", Unavailable},             // a command of a script
	{"the user executing the script can't", Misconfigured}, // NOPERM of a command inside a script, up to Redis 7.0
	{"acl failure in script", Misconfigured},               // the same from Redis 7.2 on
	{"unknown redis command", Misconfigured},
	{"unknown command", Misconfigured},
	{"unknown subcommand", Misconfigured},
	{"not allowed from script", Misconfigured},
	{"db index is out of range", Misconfigured},
	{"select is not allowed", Misconfigured},
	{"without any password configured", Misconfigured},
	{"but no password is set", Misconfigured},
	{"invalid password", Misconfigured},
	{"invalid username-password", Misconfigured},
	{"unauthenticated", Misconfigured},
}

// inScript finds the error of a command in the error of its script. Servers before Redis 7 report it in this form.
var inScript = regexp.MustCompile(`^ERR Error running script .*@user_script: ?\d+: -?(.*)$`)

// Classify sorts the error of a call. ctx is the context of its caller.
func Classify(ctx context.Context, err error) Class {
	if err != nil && !Refused(err) && ctx.Err() != nil {
		return ContextEnded
	}
	return classify(err)
}

// classify is Classify without a context.
func classify(err error) Class {
	var answer redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return Answered
	case errors.As(err, &answer):
		return classOf(answer.Error())
	case misconfigured(err):
		return Misconfigured
	}
	return Unavailable
}

// classOf sorts an answer of a server.
func classOf(text string) Class {
	if found := inScript.FindStringSubmatch(text); found != nil {
		text = found[1]
	}
	code, _, _ := strings.Cut(text, " ")
	if class, known := codes[code]; known {
		return class
	}
	text = strings.ToLower(text)
	for _, t := range texts {
		if strings.Contains(text, t.part) {
			return t.class
		}
	}
	return OtherRefusal
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
