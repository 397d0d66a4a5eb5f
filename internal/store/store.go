// Package store keeps the state in SQLite: one file, one writer at a time, every
// change on disk before it counts. The SQL is one text that PostgreSQL takes
// too; storetest says exactly what each method does.
package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/tenant"
)

//go:embed migrations/*.sql
var migrations embed.FS

// schema is the number of the newest migration.
const schema = 1

// patience is how long a change waits for one of another process.
const patience = 10 * time.Second

// Store is an open state. Its methods may be called at once from many
// goroutines, and several processes may open the same file.
type Store struct {
	write *sql.DB // one connection
	read  *sql.DB

	mu     sync.Mutex // for what follows
	watch  *sql.Conn  // sees whether the file was changed by others
	seen   int64      // data_version when seq was read
	newest int64
}

// Open opens a state and makes it when it is not there, readable to its owner
// alone.
func Open(ctx context.Context, path string) (*Store, error) {
	fresh := false
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		fresh = true
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "making the state").Hint("set DESTAJO_HOME to a folder that you may write")
		}
		_ = f.Close()
	}
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {fmt.Sprintf("busy_timeout(%d)", patience.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"}}
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	s := &Store{}
	var err error
	if s.write, err = sql.Open("sqlite", name); err == nil {
		s.write.SetMaxOpenConns(1)
		s.read, err = sql.Open("sqlite", name)
	}
	if err != nil {
		return nil, broken(err, "opening the state %s", path)
	}
	s.read.SetMaxOpenConns(4)
	s.read.SetMaxIdleConns(4)
	if err := s.prepare(ctx, path, fresh); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// prepare brings the file to the newest schema. A file that has it costs one
// read of one row.
func (s *Store) prepare(ctx context.Context, path string, fresh bool) error {
	version := int64(0)
	if !fresh {
		var err error
		if version, err = s.schema(ctx); err != nil {
			return broken(err, "reading the state %s", path)
		}
	}
	switch {
	case version > schema:
		return fault.New(fault.Conflict, "the state %s was written by a newer destajo: its schema is %d, and this one knows %d", path, version, schema).Hint("use the newer program")
	case version < schema:
		if err := s.migrate(ctx); err != nil {
			return broken(err, "bringing the state %s to this version", path)
		}
	}
	return nil
}

// schema is that of the file; 0: none yet.
func (s *Store) schema(ctx context.Context) (int64, error) {
	var text string
	err := s.write.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'schema'").Scan(&text)
	if errors.Is(err, sql.ErrNoRows) || err != nil && strings.Contains(err.Error(), "no such table") {
		return 0, nil
	}
	return parse(text), err
}

func (s *Store) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.write, dir)
	if err != nil {
		return err
	}
	// Commands that meet on a fresh state do this at once; who comes second to
	// a table fails, and finds it the next time.
	for range 3 {
		if _, err = p.Up(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	// The rows come after the tables, the schema last: whoever dies here leaves
	// a state that the next one completes.
	var id [10]byte
	_, _ = rand.Read(id[:]) // it never fails
	now := micros(time.Now())
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, x := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO meta (name, value) VALUES ('plane', $1) ON CONFLICT (name) DO NOTHING", []any{hex.EncodeToString(id[:])}},
		{"INSERT INTO meta (name, value) VALUES ('epoch', '1') ON CONFLICT (name) DO NOTHING", nil},
		{"INSERT INTO projects (id, version, name, made) VALUES ($1, 1, $2, $3) ON CONFLICT (id) DO NOTHING", []any{tenant.DefaultProject, tenant.DefaultProject, now}},
		{"INSERT INTO members (project, id, version, role, made) VALUES ($1, $2, 1, $3, $4) ON CONFLICT (project, id) DO NOTHING", []any{tenant.DefaultProject, tenant.DefaultMember, string(tenant.Owner), now}},
		{"INSERT INTO meta (name, value) VALUES ('schema', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value", []any{number(schema)}},
	} {
		if _, err := tx.ExecContext(ctx, x.text, x.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Close closes the files.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.watch != nil {
		_ = s.watch.Close()
		s.watch = nil
	}
	s.mu.Unlock()
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Plane says whose state this is, and its epoch now.
func (s *Store) Plane(ctx context.Context) (record.Plane, error) {
	var p record.Plane
	var epoch string
	err := s.read.QueryRowContext(ctx, "SELECT a.value, b.value FROM meta a, meta b WHERE a.name = 'plane' AND b.name = 'epoch'").Scan(&p.ID, &epoch)
	p.Epoch = parse(epoch)
	return p, broken(err, "reading whose state this is")
}

// NewEpoch begins a new epoch: machines of earlier ones are put aside. It is
// for a state that was restored from a copy.
func (s *Store) NewEpoch(ctx context.Context) (epoch int64, err error) {
	err = s.change(ctx, func(tx *sql.Tx) error {
		var text string
		if err := tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&text); err != nil {
			return err
		}
		epoch = parse(text) + 1
		_, err := tx.ExecContext(ctx, "UPDATE meta SET value = $1 WHERE name = 'epoch'", number(epoch))
		return err
	})
	return epoch, err
}

// NextJobs reserves n numbers that follow each other and gives the first.
func (s *Store) NextJobs(ctx context.Context, n int) (first int64, err error) {
	if n < 1 {
		return 0, fault.New(fault.Internal, "%d job numbers were asked for", n).Hint("ask for at least one")
	}
	err = s.change(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "UPDATE clock SET next_job = next_job + $1 WHERE one = 1 RETURNING next_job", n).Scan(&first)
	})
	return first - int64(n), err
}

// leaseName is the one lease of a state.
const leaseName = "loop"

// Acquire takes the lease when it is free or has expired, and renews it for
// its holder. A new holder gets a greater token. False: another one has it.
func (s *Store) Acquire(ctx context.Context, holder string, now time.Time, ttl time.Duration) (record.Lease, bool, error) {
	l, found, err := s.lease(ctx, s.read)
	if err != nil {
		return l, false, err
	}
	if found && l.Holder != holder && l.Holder != "" && now.Before(l.Expires) && l.Expires.Sub(now) <= time.Hour {
		return l, false, nil // the common case costs no write
	}
	mine := false
	err = s.change(ctx, func(tx *sql.Tx) error {
		l, found, err = s.lease(ctx, tx)
		switch {
		case err != nil:
			return err
		case found && l.Holder == holder:
		case found && l.Holder != "" && now.Before(l.Expires) && l.Expires.Sub(now) <= time.Hour: // a clock that jumped back must not keep it for ever
			return nil
		default:
			l.Holder = holder
			l.Token++
		}
		mine = true
		l.Expires = now.Add(ttl)
		_, err := tx.ExecContext(ctx, `INSERT INTO leases (name, holder, token, expires) VALUES ($1, $2, $3, $4)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = excluded.token, expires = excluded.expires`, leaseName, l.Holder, l.Token, micros(l.Expires))
		return err
	})
	return l, mine && err == nil, err
}

// Release gives the lease back; its token stays used.
func (s *Store) Release(ctx context.Context, l record.Lease) error {
	return s.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE leases SET holder = '', expires = 0 WHERE name = $1 AND token = $2", leaseName, l.Token)
		return err
	})
}

// Holder says who has the lease, or had it last. An empty holder gave it back.
func (s *Store) Holder(ctx context.Context) (record.Lease, error) {
	l, _, err := s.lease(ctx, s.read)
	return l, err
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (s *Store) lease(ctx context.Context, q queryer) (record.Lease, bool, error) {
	var l record.Lease
	var expires int64
	err := q.QueryRowContext(ctx, "SELECT holder, token, expires FROM leases WHERE name = $1", leaseName).Scan(&l.Holder, &l.Token, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return l, false, nil
	}
	l.Expires = moment(expires)
	if err != nil {
		return l, false, broken(err, "reading the lease")
	}
	return l, true, nil
}

// change runs one transaction that is on disk when it returns.
func (s *Store) change(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return broken(err, "changing the state")
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return broken(err, "changing the state")
	}
	if err := tx.Commit(); err != nil {
		return broken(err, "changing the state")
	}
	return nil
}

// broken turns a database's error into a fault with what to do. Faults pass.
func broken(err error, format string, args ...any) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	what := fmt.Sprintf(format, args...)
	var x *sqlite.Error
	if errors.As(err, &x) {
		switch x.Code() & 0xff {
		case sqlite3.SQLITE_FULL:
			return fault.Wrap(fault.Internal, err, "%s: the disk of the state is full, and nothing was changed", what).Hint("make room on the disk of DESTAJO_HOME and do it again")
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return fault.Wrap(fault.Internal, err, "%s: another process held the state for more than %v", what, patience).
				Hint("do it again; if it stays so, the disk of DESTAJO_HOME is very slow, or a network file system")
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return fault.Wrap(fault.Internal, err, "%s: the file of the state is damaged", what).
				Hint("restore it from a copy and begin a new epoch: machines of the old one are then shown as quarantined, not used and not ended")
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM:
			return fault.Wrap(fault.Internal, err, "%s: its files cannot be read or written", what).Hint("DESTAJO_HOME must be a folder on a local disk that you may write, with room on it")
		}
	}
	return fault.Wrap(fault.Internal, err, "%s", what).Hint("do it again; if it stays so, look at the disk of DESTAJO_HOME")
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func number(n int64) string { b, _ := json.Marshal(n); return string(b) }

func parse(s string) (n int64) { _ = json.Unmarshal([]byte(s), &n); return n }

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
