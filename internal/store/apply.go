package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/machine"
)

// Apply writes changes in one transaction, or nothing. A token above 0 must be
// that of the newest lease. On success the rows in c carry their new versions.
func (s *Store) Apply(ctx context.Context, token int64, c *record.Changes) error {
	sources := make([]int64, len(c.Sources)) // their new versions
	var seq int64
	err := s.change(ctx, func(tx *sql.Tx) error {
		if token > 0 {
			l, _, err := s.lease(ctx, tx)
			if err != nil {
				return err
			}
			if l.Token != token {
				return fault.New(fault.Conflict, "another process took the lease of this state").Hint("this one must read the state anew; nothing was changed")
			}
		}
		err := tx.QueryRowContext(ctx, "UPDATE clock SET seq = seq + 1 WHERE one = 1 RETURNING seq").Scan(&seq)
		if err != nil {
			return err
		}
		w := writer{ctx: ctx, tx: tx, seq: seq, prepared: map[string]*sql.Stmt{}}
		defer w.close()
		if err := w.rows(c); err != nil {
			return err
		}
		for i, x := range c.Sources {
			if sources[i], err = w.source(x); err != nil {
				return err
			}
		}
		return w.appendOnly(c)
	})
	if err != nil {
		return err
	}
	c.Seq = seq
	for _, x := range c.Jobs {
		x.Version++
	}
	for _, x := range c.Attempts {
		x.Version++
	}
	for _, x := range c.Machines {
		x.Version++
	}
	for _, x := range c.Holds {
		x.Version++
	}
	for _, x := range c.Places {
		x.Version++
	}
	for i, x := range c.Sources {
		x.Version = sources[i]
	}
	return nil
}

// writer writes the rows of one change.
type writer struct {
	ctx      context.Context
	tx       *sql.Tx
	seq      int64
	prepared map[string]*sql.Stmt
	line     int64
}

func (w *writer) close() {
	for _, p := range w.prepared {
		_ = p.Close()
	}
}

func (w *writer) exec(text string, args ...any) (int64, error) {
	p := w.prepared[text]
	if p == nil {
		var err error
		if p, err = w.tx.PrepareContext(w.ctx, text); err != nil {
			return 0, err
		}
		w.prepared[text] = p
	}
	r, err := p.ExecContext(w.ctx, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// put writes one row over the version it was read at.
func (w *writer) put(what string, version int64, insert, update string, args ...any) error {
	text := update
	if version == 0 {
		text = insert
	}
	n, err := w.exec(text, append(args, version)...)
	if err != nil {
		return err
	}
	if n == 0 {
		return changed(what)
	}
	return nil
}

func changed(what string) error {
	return fault.New(fault.Conflict, "%s was changed by another process since it was read", what).Hint("read it again and decide anew; nothing was changed")
}

func body(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// rows writes the rows that have versions, but sources.
func (w *writer) rows(c *record.Changes) error {
	for _, x := range c.Jobs {
		text, err := body(x)
		if err != nil {
			return err
		}
		if err := w.put(fmt.Sprintf("job %d", x.ID), x.Version,
			`INSERT INTO jobs (seq, project, member, name, array_id, state, live, body, id, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10 + 1) ON CONFLICT (id) DO NOTHING`,
			`UPDATE jobs SET seq = $1, project = $2, member = $3, name = $4, array_id = $5, state = $6, live = $7, body = $8, version = version + 1 WHERE id = $9 AND version = $10`,
			w.seq, x.Project, x.Member, x.Name, x.Array, string(x.State), flag(!x.State.Ended()), text, x.ID); err != nil {
			return err
		}
	}
	for _, x := range c.Attempts {
		text, err := body(x)
		if err != nil {
			return err
		}
		if err := w.put("attempt "+x.ID, x.Version,
			`INSERT INTO attempts (seq, project, member, job, number, live, body, id, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9 + 1) ON CONFLICT (id) DO NOTHING`,
			`UPDATE attempts SET seq = $1, project = $2, member = $3, job = $4, number = $5, live = $6, body = $7, version = version + 1 WHERE id = $8 AND version = $9`,
			w.seq, x.Project, x.Member, x.Job, x.Number, flag(x.State != machine.Over), text, x.ID); err != nil {
			return err
		}
	}
	for _, x := range c.Machines {
		text, err := body(x)
		if err != nil {
			return err
		}
		if err := w.put("machine "+x.ID, x.Version,
			`INSERT INTO machines (seq, project, member, state, live, asked, body, id, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9 + 1) ON CONFLICT (id) DO NOTHING`,
			`UPDATE machines SET seq = $1, project = $2, member = $3, state = $4, live = $5, asked = $6, body = $7, version = version + 1 WHERE id = $8 AND version = $9`,
			w.seq, x.Project, x.Member, string(x.State), flag(x.State != machine.Gone || !x.Settled), micros(x.Asked), text, x.ID); err != nil {
			return err
		}
	}
	for _, x := range c.Holds {
		if err := w.put(fmt.Sprintf("the hold of job %d", x.Job), x.Version,
			`INSERT INTO holds (seq, project, member, currency, amount, committed, most, released, live, job, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 + 1) ON CONFLICT (job) DO NOTHING`,
			`UPDATE holds SET seq = $1, project = $2, member = $3, currency = $4, amount = $5, committed = $6, most = $7, released = $8, live = $9, version = version + 1 WHERE job = $10 AND version = $11`,
			w.seq, x.Project, x.Member, x.Currency, int64(x.Amount), int64(x.Committed), int64(x.Limit), micros(x.Released), flag(x.Released.IsZero()), x.Job); err != nil {
			return err
		}
	}
	for _, x := range c.Places {
		text, err := body(x)
		if err != nil {
			return err
		}
		if err := w.put("what is known of "+x.Offer, x.Version,
			`INSERT INTO places (seq, member, body, project, offer, version) VALUES ($1, $2, $3, $4, $5, $6 + 1) ON CONFLICT (project, offer) DO NOTHING`,
			`UPDATE places SET seq = $1, member = $2, body = $3, version = version + 1 WHERE project = $4 AND offer = $5 AND version = $6`,
			w.seq, x.Member, text, x.Project, x.Offer); err != nil {
			return err
		}
	}
	return nil
}

// source writes one source and gives its new version: one that was removed may
// come again as new, and goes on from the version that it had.
func (w *writer) source(x *record.Source) (version int64, err error) {
	text, err := body(x)
	if err != nil {
		return 0, err
	}
	statement := `UPDATE sources SET seq = $1, project = $2, member = $3, live = $4, body = $5, version = version + 1 WHERE id = $6 AND version = $7 RETURNING version`
	if x.Version == 0 {
		statement = `INSERT INTO sources (seq, project, member, live, body, id, version) VALUES ($1, $2, $3, $4, $5, $6, $7 + 1)
			ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, project = excluded.project, member = excluded.member, live = excluded.live, body = excluded.body, version = sources.version + 1 WHERE sources.live = 0
			RETURNING version`
	}
	err = w.tx.QueryRowContext(w.ctx, statement, w.seq, x.Project, x.Member, flag(!x.Removed), text, x.ID, x.Version).Scan(&version)
	if errors.Is(err, sql.ErrNoRows) {
		err = changed("the source " + x.ID)
	}
	return version, err
}

// appendOnly writes what is never changed.
func (w *writer) appendOnly(c *record.Changes) error {
	for _, x := range c.Counters {
		if err := w.count(x); err != nil {
			return err
		}
	}
	for i := range c.Usage {
		u := &c.Usage[i]
		text, err := body(u)
		if err != nil {
			return err
		}
		if _, err := w.exec(`INSERT INTO usages (name, seq, project, member, job, attempt, machine, provider, kind, began, ended, body)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (name) DO NOTHING`,
			u.Key, w.seq, u.Project, u.Member, u.Job, u.Attempt, u.Machine, u.Provider, string(u.Kind), micros(u.From), micros(u.To), text); err != nil {
			return err
		}
	}
	for i := range c.Charges {
		x := &c.Charges[i]
		if _, err := w.exec(`INSERT INTO charges (name, project, member, amount, known, currency, price, assumed, source, as_of) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (name) DO NOTHING`,
			x.Key, x.Project, x.Member, int64(x.Amount), flag(x.Known), x.Currency, int64(x.Price), flag(x.Assumed), x.Source, x.AsOf); err != nil {
			return err
		}
	}
	for i := range c.Events {
		e := &c.Events[i]
		w.line++
		if _, err := w.exec(`INSERT INTO events (seq, line, at, project, member, job, machine, what, detail) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			w.seq, w.line, micros(e.At), e.Project, e.Member, e.Job, e.Machine, e.What, e.Detail); err != nil {
			return err
		}
	}
	for i := range c.Samples {
		x := &c.Samples[i]
		text, err := body(x)
		if err != nil {
			return err
		}
		if _, err := w.exec(`INSERT INTO samples (attempt, node, at, job, project, member, body) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (attempt, node, at) DO NOTHING`,
			x.Attempt, x.Rank, micros(x.At), x.Job, x.Project, x.Member, text); err != nil {
			return err
		}
	}
	return nil
}

// count adds to a counter, unless the sum would pass its limit or what a number
// holds. Less never passes a limit.
func (w *writer) count(x record.Counter) error {
	least, most := int64(math.MinInt64), int64(math.MaxInt64) // of the value before
	switch {
	case x.Add > 0 && x.Limit > 0:
		most = x.Limit - x.Add
	case x.Add > 0:
		most -= x.Add
	default:
		least -= x.Add
	}
	if _, err := w.exec(`INSERT INTO counters (name, value) VALUES ($1, 0) ON CONFLICT (name) DO NOTHING`, x.Key); err != nil {
		return err
	}
	n, err := w.exec(`UPDATE counters SET value = value + $1 WHERE name = $2 AND value BETWEEN $3 AND $4`, x.Add, x.Key, least, most)
	if err != nil {
		return err
	}
	if n == 0 {
		return fault.New(fault.OverLimit, "%s would pass its limit", x.Key).Hint("wait until something of it is free again, or raise the limit; nothing was changed")
	}
	return nil
}
