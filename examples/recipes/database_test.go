package recipes_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// row is a database of one row with one number, the version or the token. A statement changes it if its first
// argument is greater, or with <= also if it is equal, but with > 0 not if it is 0. It is a connector, a driver, a connection and a transaction.
type row struct {
	mu     sync.Mutex
	number int64
	before int64 // when the transaction began
	repeat bool  // lets the next statement be sent again
}

func (r *row) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *row) Driver() driver.Driver                        { return r }
func (r *row) Open(string) (driver.Conn, error)             { return r, nil }
func (r *row) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (r *row) Close() error                                 { return nil }
func (r *row) Commit() error                                { return nil }

func (r *row) Begin() (driver.Tx, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = r.number
	return r, nil
}

func (r *row) Rollback() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number = r.before
	return nil
}

func (r *row) ExecContext(_ context.Context, sql string, args []driver.NamedValue) (driver.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number := args[0].Value.(int64)
	if strings.HasSuffix(sql, "AND $1 > 0") && number <= 0 {
		return driver.RowsAffected(0), nil
	}
	if number > r.number || number == r.number && strings.Contains(sql, "<=") {
		r.number = number
		if r.repeat {
			r.repeat = false
			return nil, driver.ErrBadConn // package sql sends the statement again
		}
		return driver.RowsAffected(1), nil
	}
	return driver.RowsAffected(0), nil
}

func TestMigrate_RunsOnceInAllProcesses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	db := sql.OpenDB(&row{})
	defer db.Close()
	failed := errors.New("failed")
	require.ErrorIs(t, recipes.Migrate(t.Context(), newLocks(t, rdb), db, 7,
		func(context.Context, *sql.Tx) error { return failed }), failed)
	ran, results := 0, make(chan error)
	for range 3 {
		locks := newLocks(t, rdb)
		go func() {
			results <- recipes.Migrate(t.Context(), locks, db, 7, func(context.Context, *sql.Tx) error {
				ran++ // under the lock
				return nil
			})
		}()
	}
	for range 3 {
		require.NoError(t, <-results)
	}
	require.Equal(t, 1, ran, "after the one that failed")
}

func TestCharge_IsNotRecordedOverALaterHolder(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	r := &row{}
	db := sql.OpenDB(r)
	defer db.Close()
	charge := func(context.Context) error { return nil }
	require.NoError(t, recipes.Charge(t.Context(), newLocks(t, rdb), db, "7", charge))
	require.ErrorIs(t, recipes.Charge(t.Context(), newLocks(t, rdb), db, "7", func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.number = 1 << 62 // a later holder
		return nil
	}), recipes.ErrStale)
}

// A new row has the token 0, and so have a Lock without WithFencing and the nil Lock of another name.
func TestRecord_RefusesNoToken(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&row{})
	defer db.Close()
	require.ErrorIs(t, recipes.Record(t.Context(), db, "7", 0), recipes.ErrStale)
	require.NoError(t, recipes.Record(t.Context(), db, "7", 1))
}

// The statement is sent twice, and finds the token that it has written.
func TestCharge_IsRecordedIfItsReplyIsLost(t *testing.T) {
	t.Parallel()
	r := &row{repeat: true}
	db := sql.OpenDB(r)
	defer db.Close()
	locks := newLocks(t, redistest.Start(t).Client(t))
	require.NoError(t, recipes.Charge(t.Context(), locks, db, "7", func(context.Context) error { return nil }))
	require.False(t, r.repeat)
}

// The key of the lock is overwritten while a migration runs.
func TestMigrate_LosesTheLock(t *testing.T) {
	t.Parallel()
	for when, of := range map[string]struct {
		learns  bool
		version int64
	}{
		"and commits before it learns of the loss": {false, 7},
		"and learns of it: it is rolled back":      {true, 0},
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := cogwheeltest.Start(t)
				r := &row{}
				db := sql.OpenDB(r)
				defer db.Close()
				err := recipes.Migrate(t.Context(), server.Locks(), db, 7, func(ctx context.Context, _ *sql.Tx) error {
					server.Steal("migration", time.Minute)
					if of.learns {
						<-ctx.Done()
						synctest.Wait() // package sql rolls back on a goroutine
					}
					return nil
				})
				require.ErrorIs(t, err, redislock.ErrLost)
				require.Equal(t, of.learns, errors.Is(err, sql.ErrTxDone))
				require.NotErrorIs(t, err, context.Canceled)
				require.Equal(t, of.version, r.number)
				t.Log(err)
			})
		})
	}
}
