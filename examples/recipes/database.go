package recipes

import (
	"context"
	"database/sql"
	"errors"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Migrate brings a database to a version, in one process; the others wait until it has. If it learns that the lock is
// lost before it commits, the transaction is rolled back, and the next process migrates.
func Migrate(
	ctx context.Context, locks *redislock.Client, db *sql.DB, version int,
	migrate func(ctx context.Context, tx *sql.Tx) error,
) error {
	return locks.Mutex("migration").Do(ctx, func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		raised, err := tx.ExecContext(ctx, "UPDATE schema SET version = $1 WHERE version < $1", version)
		if err != nil {
			return err
		}
		if n, err := raised.RowsAffected(); err != nil || n == 0 {
			return err // another process has migrated
		}
		if err := migrate(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// ErrStale is returned for a write that was refused.
var ErrStale = errors.New("refused: a later holder has written, or the lock has no token")

// Charge charges an order and records the charge. If another process has recorded a later charge, it returns ErrStale.
func Charge(
	ctx context.Context, locks *redislock.Client, db *sql.DB, order string, charge func(context.Context) error,
) error {
	lock := locks.Mutex("order:"+order, redislock.WithFencing())
	return lock.Do(ctx, func(ctx context.Context) error {
		if err := charge(ctx); err != nil { // with the order as its idempotency key
			return err
		}
		return Record(ctx, db, order, lock.FromContext(ctx).Token())
	})
}

// Record records that an order is charged. A token of 0 is none, and is refused.
func Record(ctx context.Context, db *sql.DB, order string, token int64) error {
	recorded, err := db.ExecContext(ctx,
		"UPDATE orders SET state = 'charged', token = $1 WHERE id = $2 AND token <= $1 AND $1 > 0", token, order)
	if err != nil {
		return err
	}
	n, err := recorded.RowsAffected()
	if err == nil && n == 0 {
		return ErrStale
	}
	return err
}
