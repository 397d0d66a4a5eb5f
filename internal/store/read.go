package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/tenant"
)

// Version is the number of the newest change. While nobody changes the file it
// costs microseconds.
func (s *Store) Version(ctx context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch == nil {
		c, err := s.read.Conn(ctx)
		if err != nil {
			return 0, broken(err, "watching the state")
		}
		s.watch, s.seen = c, -1
	}
	// The number of changes that others made is of this connection alone, so it
	// is always asked on the same one, and before what it stands for is read.
	var v int64
	err := s.watch.QueryRowContext(ctx, "PRAGMA data_version").Scan(&v)
	if err == nil && v != s.seen {
		if err = s.watch.QueryRowContext(ctx, "SELECT seq FROM clock WHERE one = 1").Scan(&s.newest); err == nil {
			s.seen = v
		}
	}
	if err != nil {
		_ = s.watch.Close()
		s.watch = nil
		return 0, broken(err, "watching the state")
	}
	return s.newest, nil
}

// Changed gives every row that changed after a moment; after 0, every row that
// is still live.
func (s *Store) Changed(ctx context.Context, since int64) (*record.Delta, error) {
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, broken(err, "reading the state")
	}
	defer tx.Rollback()
	d := &record.Delta{}
	if err := tx.QueryRowContext(ctx, "SELECT seq FROM clock WHERE one = 1").Scan(&d.Seq); err != nil {
		return nil, broken(err, "reading the state")
	}
	if since > 0 && d.Seq <= since {
		return d, nil
	}
	where, args := "live = 1", []any(nil)
	if since > 0 {
		where, args = "seq > $1", []any{since}
	}
	if d.Jobs, err = jobs(ctx, tx, "WHERE "+where+" ORDER BY id", args...); err != nil {
		return nil, err
	}
	if d.Attempts, err = attempts(ctx, tx, "WHERE "+where+" ORDER BY job, number", args...); err != nil {
		return nil, err
	}
	if d.Machines, err = machines(ctx, tx, "WHERE "+where+" ORDER BY id", args...); err != nil {
		return nil, err
	}
	if d.Holds, err = holds(ctx, tx, "WHERE "+where+" ORDER BY job", args...); err != nil {
		return nil, err
	}
	if d.Sources, err = bodies(ctx, tx, "SELECT version, body FROM sources WHERE "+where+" ORDER BY id", func(x *record.Source, v int64) { x.Version = v }, args...); err != nil {
		return nil, err
	}
	if since == 0 {
		where = "seq >= 0"
	}
	d.Places, err = bodies(ctx, tx, "SELECT version, body FROM places WHERE "+where+" ORDER BY offer", func(x *record.Place, v int64) { x.Version = v }, args...)
	return d, err
}

// source is what rows are read from.
type source interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// bodies reads rows of a version and a JSON body.
func bodies[T any](ctx context.Context, q source, text string, version func(*T, int64), args ...any) ([]*T, error) {
	return decoded(ctx, q, text, func(b []byte, x *T) error { return json.Unmarshal(b, x) }, version, args...)
}

func decoded[T any](ctx context.Context, q source, text string, decode func([]byte, *T) error, version func(*T, int64), args ...any) ([]*T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, broken(err, "reading the state")
	}
	defer rows.Close()
	var out []*T
	for rows.Next() {
		var v int64
		var b sql.RawBytes
		if err := rows.Scan(&v, &b); err != nil {
			return nil, broken(err, "reading the state")
		}
		x := new(T)
		if err := decode(b, x); err != nil {
			return nil, broken(err, "a row of the state cannot be read")
		}
		version(x, v)
		out = append(out, x)
	}
	return out, broken(rows.Err(), "reading the state")
}

func jobs(ctx context.Context, q source, rest string, args ...any) ([]*job.Job, error) {
	return decoded(ctx, q, "SELECT version, body FROM jobs "+rest, jobReader(), func(x *job.Job, v int64) { x.Version = v }, args...)
}

func attempts(ctx context.Context, q source, rest string, args ...any) ([]*machine.Attempt, error) {
	return bodies(ctx, q, "SELECT version, body FROM attempts "+rest, func(x *machine.Attempt, v int64) { x.Version = v }, args...)
}

func machines(ctx context.Context, q source, rest string, args ...any) ([]*machine.Machine, error) {
	return bodies(ctx, q, "SELECT version, body FROM machines "+rest, func(x *machine.Machine, v int64) { x.Version = v }, args...)
}

func holds(ctx context.Context, q source, rest string, args ...any) ([]*tenant.Hold, error) {
	rows, err := q.QueryContext(ctx, "SELECT job, version, project, member, currency, amount, committed, most, released FROM holds "+rest, args...)
	if err != nil {
		return nil, broken(err, "reading the state")
	}
	defer rows.Close()
	var out []*tenant.Hold
	for rows.Next() {
		var h tenant.Hold
		var released int64
		if err := rows.Scan(&h.Job, &h.Version, &h.Project, &h.Member, &h.Currency, &h.Amount, &h.Committed, &h.Limit, &released); err != nil {
			return nil, broken(err, "reading the state")
		}
		h.Released = moment(released)
		out = append(out, &h)
	}
	return out, broken(rows.Err(), "reading the state")
}

// clause gathers conditions with their arguments.
type clause struct {
	parts []string
	args  []any
}

func (c *clause) add(text string, args ...any) {
	for _, a := range args {
		c.args = append(c.args, a)
		text = strings.Replace(text, "?", fmt.Sprintf("$%d", len(c.args)), 1)
	}
	c.parts = append(c.parts, text)
}

func (c *clause) where() string {
	if len(c.parts) == 0 {
		return ""
	}
	return "WHERE " + strings.Join(c.parts, " AND ")
}

// in adds a condition on one of several values.
func in[T any](c *clause, column string, values []T) {
	marks := make([]string, len(values))
	args := make([]any, len(values))
	for i, v := range values {
		marks[i], args[i] = "?", v
	}
	c.add(column+" IN ("+strings.Join(marks, ", ")+")", args...)
}

// atOnce is how many values one statement looks for.
const atOnce = 500

// Jobs gives jobs, newest first. A list of ids that is there and empty chooses
// nothing.
func (s *Store) Jobs(ctx context.Context, f record.JobFilter) ([]*job.Job, error) {
	var c clause
	if f.Project != "" {
		c.add("project = ?", f.Project)
	}
	if f.IDs != nil {
		if len(f.IDs) != 0 && len(f.IDs) <= atOnce {
			in(&c, "id", f.IDs)
		} else {
			return s.jobsOf(ctx, f)
		}
	}
	if f.Array != 0 {
		c.add("array_id = ?", f.Array)
	}
	if f.Name != "" {
		c.add("name = ?", f.Name)
	}
	if len(f.States) > 0 {
		in(&c, "state", f.States)
	}
	if f.Live {
		c.add("live = 1")
	}
	if f.Before > 0 {
		c.add("id < ?", f.Before)
	}
	rest := c.where() + " ORDER BY id DESC"
	if f.Limit > 0 {
		rest += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	return jobs(ctx, s.read, rest, c.args...)
}

// jobsOf gives jobs of more ids than one statement takes, or of none.
func (s *Store) jobsOf(ctx context.Context, f record.JobFilter) ([]*job.Job, error) {
	ids := slices.Compact(slices.Sorted(slices.Values(f.IDs)))
	slices.Reverse(ids)
	var out []*job.Job
	for f.IDs = range slices.Chunk(ids, atOnce) {
		some, err := s.Jobs(ctx, f)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
		if f.Limit > 0 && len(out) >= f.Limit {
			return out[:f.Limit], nil
		}
	}
	return out, nil
}

// Attempts gives the attempts of one job, oldest first.
func (s *Store) Attempts(ctx context.Context, id int64) ([]*machine.Attempt, error) {
	return attempts(ctx, s.read, "WHERE job = $1 ORDER BY number", id)
}

// Machines gives machines, newest first; all: those that are gone too.
func (s *Store) Machines(ctx context.Context, project string, all bool) ([]*machine.Machine, error) {
	rest := "WHERE project = $1 AND state <> 'gone' ORDER BY asked DESC, id"
	if all {
		rest = "WHERE project = $1 ORDER BY asked DESC, id"
	}
	return machines(ctx, s.read, rest, project)
}

// Machine gives one machine, or a fault of the kind NotFound.
func (s *Store) Machine(ctx context.Context, id string) (*machine.Machine, error) {
	all, err := machines(ctx, s.read, "WHERE id = $1", id)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fault.New(fault.NotFound, "no machine %q", id).Hint("`destajo machines --all` lists them")
	}
	return all[0], nil
}

// Hold gives the hold of a job, or a fault of the kind NotFound.
func (s *Store) Hold(ctx context.Context, id int64) (*tenant.Hold, error) {
	all, err := holds(ctx, s.read, "WHERE job = $1", id)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fault.New(fault.NotFound, "nothing is held for job %d", id).Hint("`destajo job %d` says what it costs", id)
	}
	return all[0], nil
}

// Counter gives a counter; one that nobody raised is 0.
func (s *Store) Counter(ctx context.Context, key string) (int64, error) {
	var n int64
	err := s.read.QueryRowContext(ctx, "SELECT value FROM counters WHERE name = $1", key).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, broken(err, "reading a counter")
}

// Member gives a member of a project, or a fault of the kind NotFound.
func (s *Store) Member(ctx context.Context, project, id string) (*tenant.Member, error) {
	m := tenant.Member{Project: project, ID: id}
	var made int64
	err := s.read.QueryRowContext(ctx, "SELECT version, role, made FROM members WHERE project = $1 AND id = $2", project, id).Scan(&m.Version, &m.Role, &made)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fault.New(fault.NotFound, "%q is no member of project %q", id, project).Hint("ask an owner of the project to add you")
	}
	m.Made = moment(made)
	return &m, broken(err, "reading a member")
}

// Ledger gives usage with its charges, oldest first. A list of jobs that is
// there and empty chooses nothing. Usage without a charge has one without key.
func (s *Store) Ledger(ctx context.Context, f record.LedgerFilter) ([]record.Entry, error) {
	var c clause
	if f.Project != "" {
		c.add("u.project = ?", f.Project)
	}
	if f.Jobs != nil {
		if len(f.Jobs) != 0 && len(f.Jobs) <= atOnce {
			in(&c, "u.job", f.Jobs)
		} else {
			return s.ledgerOf(ctx, f)
		}
	}
	if f.Machine != "" {
		c.add("u.machine = ?", f.Machine)
	}
	if !f.From.IsZero() {
		c.add("u.ended >= ?", micros(f.From))
	}
	if !f.To.IsZero() {
		c.add("u.ended < ?", micros(f.To))
	}
	rows, err := s.read.QueryContext(ctx, `SELECT u.body, c.amount, c.known, c.currency, c.price, c.assumed, c.source, c.as_of
		FROM usages u LEFT JOIN charges c ON c.name = u.name `+c.where()+" ORDER BY u.ended, u.began, u.name", c.args...)
	if err != nil {
		return nil, broken(err, "reading the ledger")
	}
	defer rows.Close()
	var out []record.Entry
	for rows.Next() {
		var e record.Entry
		var b sql.RawBytes
		var amount, known, price, assumed sql.NullInt64
		var currency, from, asOf sql.NullString
		if err := rows.Scan(&b, &amount, &known, &currency, &price, &assumed, &from, &asOf); err != nil {
			return nil, broken(err, "reading the ledger")
		}
		if err := json.Unmarshal(b, &e.Usage); err != nil {
			return nil, broken(err, "a row of the ledger cannot be read")
		}
		if amount.Valid {
			x := &e.Charge
			x.Key, x.Project, x.Member = e.Key, e.Project, e.Member
			x.Amount, x.Known, x.Currency = money.Amount(amount.Int64), known.Int64 == 1, currency.String
			x.Price, x.Assumed, x.Source, x.AsOf = money.Amount(price.Int64), assumed.Int64 == 1, from.String, asOf.String
		}
		out = append(out, e)
	}
	return out, broken(rows.Err(), "reading the ledger")
}

// ledgerOf gives the ledger of more jobs than one statement takes, or of none.
func (s *Store) ledgerOf(ctx context.Context, f record.LedgerFilter) ([]record.Entry, error) {
	var out []record.Entry
	for f.Jobs = range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(f.Jobs))), atOnce) {
		some, err := s.Ledger(ctx, f)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	slices.SortStableFunc(out, func(a, b record.Entry) int {
		return cmp.Or(cmp.Compare(micros(a.To), micros(b.To)), cmp.Compare(micros(a.From), micros(b.From)), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// Events gives lines of the trail, oldest first; with a limit the newest ones.
func (s *Store) Events(ctx context.Context, f record.EventFilter) ([]tenant.Event, error) {
	var c clause
	if f.Project != "" {
		c.add("project = ?", f.Project)
	}
	if f.Job != 0 {
		c.add("job = ?", f.Job)
	}
	if f.Machine != "" {
		c.add("machine = ?", f.Machine)
	}
	rest := c.where() + " ORDER BY seq DESC, line DESC"
	if f.Limit > 0 {
		rest += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	rows, err := s.read.QueryContext(ctx, "SELECT at, project, member, job, machine, what, detail FROM events "+rest, c.args...)
	if err != nil {
		return nil, broken(err, "reading the trail")
	}
	defer rows.Close()
	var out []tenant.Event
	for rows.Next() {
		var e tenant.Event
		var at int64
		if err := rows.Scan(&at, &e.Project, &e.Member, &e.Job, &e.Machine, &e.What, &e.Detail); err != nil {
			return nil, broken(err, "reading the trail")
		}
		e.At = moment(at)
		out = append(out, e)
	}
	slices.Reverse(out)
	return out, broken(rows.Err(), "reading the trail")
}

// Samples gives what was measured of an attempt, oldest first.
func (s *Store) Samples(ctx context.Context, attempt string) ([]record.Sample, error) {
	all, err := bodies(ctx, s.read, "SELECT 0, body FROM samples WHERE attempt = $1 ORDER BY at, node", func(*record.Sample, int64) {}, attempt)
	out := make([]record.Sample, len(all))
	for i, x := range all {
		out[i] = *x
	}
	return out, err
}
