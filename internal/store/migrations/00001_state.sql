-- +goose Up
-- One text for SQLite and PostgreSQL: BIGINT microseconds UTC for times (0: none),
-- BIGINT nano-units for money, TEXT for JSON. Rows keep what is filtered on in
-- columns and the whole noun in body.
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE clock (one BIGINT PRIMARY KEY, seq BIGINT NOT NULL, next_job BIGINT NOT NULL);
INSERT INTO clock (one, seq, next_job) VALUES (1, 0, 1);
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, token BIGINT NOT NULL, expires BIGINT NOT NULL);
CREATE TABLE projects (id TEXT PRIMARY KEY, version BIGINT NOT NULL, name TEXT NOT NULL, made BIGINT NOT NULL);
CREATE TABLE members (project TEXT NOT NULL, id TEXT NOT NULL, version BIGINT NOT NULL, role TEXT NOT NULL, made BIGINT NOT NULL, PRIMARY KEY (project, id));

-- INTEGER, so that SQLite keeps the rows in the order of their numbers: no
-- index beside them, and lists read them in one sweep.
CREATE TABLE jobs (id INTEGER PRIMARY KEY, version BIGINT NOT NULL, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL,
  name TEXT NOT NULL, array_id BIGINT NOT NULL, state TEXT NOT NULL, live BIGINT NOT NULL, body TEXT NOT NULL);
CREATE INDEX jobs_seq ON jobs (seq);
CREATE INDEX jobs_live ON jobs (live);
CREATE INDEX jobs_name ON jobs (project, name, id);
CREATE INDEX jobs_array ON jobs (array_id);
CREATE INDEX jobs_project ON jobs (project, id);

CREATE TABLE attempts (id TEXT PRIMARY KEY, version BIGINT NOT NULL, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL,
  job BIGINT NOT NULL, number BIGINT NOT NULL, live BIGINT NOT NULL, body TEXT NOT NULL);
CREATE INDEX attempts_seq ON attempts (seq);
CREATE INDEX attempts_live ON attempts (live);
CREATE INDEX attempts_job ON attempts (job, number);

CREATE TABLE machines (id TEXT PRIMARY KEY, version BIGINT NOT NULL, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL,
  state TEXT NOT NULL, live BIGINT NOT NULL, asked BIGINT NOT NULL, body TEXT NOT NULL);
CREATE INDEX machines_seq ON machines (seq);
CREATE INDEX machines_live ON machines (live);

CREATE TABLE holds (job INTEGER PRIMARY KEY, version BIGINT NOT NULL, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL,
  currency TEXT NOT NULL, amount BIGINT NOT NULL, committed BIGINT NOT NULL, most BIGINT NOT NULL, released BIGINT NOT NULL, live BIGINT NOT NULL);
CREATE INDEX holds_seq ON holds (seq);
CREATE INDEX holds_live ON holds (live);

CREATE TABLE places (project TEXT NOT NULL, offer TEXT NOT NULL, version BIGINT NOT NULL, seq BIGINT NOT NULL, member TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (project, offer));
CREATE INDEX places_seq ON places (seq);
CREATE TABLE sources (id TEXT PRIMARY KEY, version BIGINT NOT NULL, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL, live BIGINT NOT NULL, body TEXT NOT NULL);
CREATE INDEX sources_seq ON sources (seq);

CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE usages (name TEXT PRIMARY KEY, seq BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL, job BIGINT NOT NULL, attempt TEXT NOT NULL,
  machine TEXT NOT NULL, provider TEXT NOT NULL, kind TEXT NOT NULL, began BIGINT NOT NULL, ended BIGINT NOT NULL, body TEXT NOT NULL);
CREATE INDEX usages_job ON usages (job);
CREATE INDEX usages_machine ON usages (machine);
CREATE INDEX usages_ended ON usages (project, ended);
CREATE TABLE charges (name TEXT PRIMARY KEY, project TEXT NOT NULL, member TEXT NOT NULL, amount BIGINT NOT NULL, known BIGINT NOT NULL, currency TEXT NOT NULL, price BIGINT NOT NULL,
  assumed BIGINT NOT NULL, source TEXT NOT NULL, as_of TEXT NOT NULL);
CREATE TABLE events (seq BIGINT NOT NULL, line BIGINT NOT NULL, at BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL, job BIGINT NOT NULL,
  machine TEXT NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL, PRIMARY KEY (seq, line));
CREATE INDEX events_job ON events (job);
CREATE INDEX events_machine ON events (machine);
CREATE TABLE samples (attempt TEXT NOT NULL, node BIGINT NOT NULL, at BIGINT NOT NULL, job BIGINT NOT NULL, project TEXT NOT NULL, member TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (attempt, node, at));
