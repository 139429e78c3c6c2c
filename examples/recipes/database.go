package recipes

import (
	"context"
	"database/sql"

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

// Charge is a step of a saga: it charges an order and records that in the database. A process that was paused for
// longer than its lease does not record it over the result of the next one: it gets ErrStale.
func Charge(
	ctx context.Context, locks *redislock.Client, db *sql.DB, order string,
	charge func(ctx context.Context) error,
) error {
	step := locks.Mutex("order:"+order, redislock.WithFencing())
	return step.Do(ctx, func(ctx context.Context) error {
		if err := charge(ctx); err != nil { // with the order as its idempotency key
			return err
		}
		token := step.FromContext(ctx).Token()
		recorded, err := db.ExecContext(ctx,
			"UPDATE orders SET state = 'charged', token = $1 WHERE id = $2 AND token <= $1", token, order)
		if err != nil {
			return err
		}
		n, err := recorded.RowsAffected()
		if err == nil && n == 0 {
			return ErrStale
		}
		return err
	})
}
