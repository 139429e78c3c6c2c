package redislock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

var (
	allKinds        = []string{"plain", "fair", "read", "write", "multi", "string"}
	exclusiveKinds  = []string{"plain", "fair", "write", "multi", "string"}
	singleNameKinds = []string{"plain", "fair", "read", "write", "string"} // with a single name
	fencedKinds     = []string{"plain", "fair", "write", "string"}
	javaKinds       = []string{"plain", "fair", "read", "write"} // that Redisson has too
)

// behaviour is a property that locks of the given kinds have on each deployment.
type behaviour struct {
	kinds []string
	check func(*testing.T, *lockUnderTest)
}

var behaviours = map[string]behaviour{
	// kinds_hold_test.go
	"excludes others and reports the remaining time":        {allKinds, excludesOthers},
	"one of a hundred concurrent tries succeeds":            {exclusiveKinds, oneOfAHundredTriesSucceeds},
	"all of a hundred concurrent readers succeed":           {[]string{"read"}, allOfAHundredReadersSucceed},
	"a second Unlock returns ErrNotHeld":                    {allKinds, secondUnlockIsNotHeld},
	"Unlock after the lease returns ErrLost":                {allKinds, unlockAfterExpiryIsLost},
	"an Owner enters again without a second hold":           {allKinds, ownerEntersAgain},
	"Extend lengthens the lease and never shortens it":      {allKinds, extendLengthensTheLease},
	"Extend of a removed lock returns ErrLost":              {allKinds, extendOfRemovedLockIsLost},
	"Unlock works after its context has ended":              {allKinds, unlockAfterContextEnd},
	"WithMaxHold ends the lock":                             {allKinds, endsAfterMaxHold},
	"Close ends the lock and its waiters":                   {allKinds, closeEndsLockAndWaiters},
	"Close releases although its context has ended":         {allKinds, closeReleasesAfterContextEnd},
	"refuses keys of other types and leaves them unchanged": {allKinds, refusesKeysOfOtherTypes},
	"State reports holders, lease and token":                {singleNameKinds, reportsState},
	"nested locks need one connection":                      {allKinds, nestedOnOneConnection},
	// force_unlock_test.go
	"ForceUnlockHolder frees only that holder": {singleNameKinds, forceUnlockHolderFreesOnlyThatHolder},
	// tokens_test.go
	"tokens increase":                              {fencedKinds, tokensIncrease},
	"tokens increase from caller to caller":        {fencedKinds, tokensIncreaseFromCallerToCaller},
	"tokens increase in Java too":                  {[]string{"plain", "fair", "write"}, tokensIncreaseInJavaToo},
	"refuses a token counter that is not a number": {fencedKinds, refusesTokenCounterThatIsNoNumber},
	"without WithFencing there is no token":        {singleNameKinds, noTokenWithoutFencing},
	// kinds_wait_test.go
	"Unlock wakes a waiter":                             {allKinds, unlockWakesWaiter},
	"Close wakes a waiter":                              {allKinds, closeWakesWaiter},
	"ForceUnlock wakes a waiter":                        {singleNameKinds, forceUnlockWakesWaiter},
	"a waiter acquires when the lease ends":             {allKinds, waiterAcquiresOnExpiry},
	"a waiter acquires by polling after a lost message": {allKinds, waiterAcquiresByPolling},
	"a message without a release grants nothing":        {singleNameKinds, messageWithoutReleaseGrantsNothing},
	"a waiter that gives up leaves no keys":             {allKinds, cancelledWaiterLeavesNoKeys},
	"a hundred waiters that give up leave no keys":      {allKinds, hundredCancelledWaitersLeaveNoKeys},
	"a context that ends at any point leaves no keys":   {allKinds, contextEndingAtAnyPointLeavesNoKeys},
	"LockFunc calls back once":                          {singleNameKinds, lockFuncCallsBackOnce},
	// min_hold_test.go
	"WithMinHold keeps the name locked": {[]string{"plain"}, minHoldKeepsTheName},
	// kinds_loss_test.go
	"is renewed while others try":                   {allKinds, renewalKeepsTheLock},
	"a renewal restores a changed expiry":           {allKinds, renewalRestoresExpiry},
	"the holder learns of a removed key":            {allKinds, holderLearnsOfRemovedKey},
	"the holder learns of an overwritten key":       {allKinds, holderLearnsOfOverwrittenKey},
	"the holder learns of ForceUnlock":              {allKinds, holderLearnsOfForceUnlock},
	"ForceUnlock ends the holder's context at once": {allKinds, forceUnlockEndsTheContextAtOnce},
	// lost_reply_test.go
	"a call whose reply is lost takes effect once":      {allKinds, lostRepliesActOnce},
	"an acquisition cancelled in flight leaves no keys": {allKinds, cancelledInFlightLeavesNoKeys},
	// kinds_java_test.go
	"Java's unlock wakes a waiter":             {javaKinds, javaUnlockWakesWaiter},
	"Unlock wakes Java":                        {javaKinds, unlockWakesJava},
	"a waiter acquires when Java's lease ends": {javaKinds, acquiresWhenJavaLeaseEnds},
	"Java acquires when the lease ends":        {javaKinds, javaAcquiresWhenLeaseEnds},
	"a waiter waits while Java renews":         {javaKinds, waitsWhileJavaRenews},
}

// Guarantees: L30.
func TestKinds(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, dep *deployment) {
		for what, b := range behaviours {
			for _, kind := range b.kinds {
				t.Run(kind+": "+what, func(t *testing.T) {
					t.Parallel()
					b.check(t, newLockUnderTest(t, dep, kind))
				})
			}
		}
		t.Run("multi: takes all names or none", func(t *testing.T) {
			t.Parallel()
			multiTakesAllOrNone(t, dep)
		})
	}
	onEachDeployment(t, run)
	t.Run("single server, RESP2, user of docs/operations.md", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		server := redistest.Shared(t)
		run(t, newDeployment(t, 2, server).asDocumentedUser(t, server, "TestKinds/"))
	})
}

// What TryLock of each kind returns while another client holds the name.
// Guarantees: A2.
func TestKinds_RefuseEachOther(t *testing.T) {
	t.Parallel()
	const (
		acquired = "acquired"
		locked   = "ErrLocked"
		wrong    = "ErrWrongKind"
	)
	type results struct{ plain, fair, read, write, str string }
	want := map[string]results{ // by the kind of the holder
		"plain":  {locked, locked, wrong, wrong, wrong},
		"fair":   {locked, locked, wrong, wrong, wrong},
		"read":   {wrong, wrong, acquired, locked, wrong},
		"write":  {wrong, wrong, locked, locked, wrong},
		"string": {wrong, wrong, wrong, wrong, locked},
	}
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		c, name := newClient(t, dep.rdb), redistest.Name(t)
		for _, held := range singleNameKinds {
			l := mustTryLock(t, newMutex(c, held, name))
			before := dep.rdb.Dump(t.Context(), name).Val()
			row := want[held]
			for kind, result := range map[string]string{
				"plain": row.plain, "fair": row.fair, "read": row.read, "write": row.write, "string": row.str,
			} {
				m := newMutex(c, kind, name)
				second, err := m.TryLock(t.Context())
				switch result {
				case acquired:
					require.NoError(t, err)
					mustUnlock(t, second)
				case locked:
					require.ErrorIs(t, err, redislock.ErrLocked, "%s on a key of %s", kind, held)
				case wrong:
					require.ErrorIs(t, err, redislock.ErrWrongKind, "%s on a key of %s", kind, held)
					require.NotErrorIs(t, err, redislock.ErrLocked)
					_, err = m.Lock(within(t, patience))
					require.ErrorIs(t, err, redislock.ErrWrongKind, "%s waits on a key of %s", kind, held)
				default:
					require.Fail(t, "no result for "+held)
				}
			}
			require.Equal(t, before, dep.rdb.Dump(t.Context(), name).Val())
			mustUnlock(t, l)
		}
		for kind, name := range map[string]string{"plain": "a}b", "fair": "a{b", "read": "", "write": "{}"} {
			_, err := newMutex(c, kind, name).TryLock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, kind)
		}
	})
}
