-- Version 1. A reader of this file needs no Reknit: bodies are JSON text (see codec.py for the rare exception).
-- Nothing newer than SQLite 3.24 is used: some long-lived distributions still ship 3.26.
BEGIN IMMEDIATE;

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('schema_version', '1');

-- AUTOINCREMENT: a number is never given twice, not even after a snapshot has emptied the table.
CREATE TABLE events (
  seq  INTEGER PRIMARY KEY AUTOINCREMENT,
  at   REAL NOT NULL,
  kind TEXT NOT NULL,
  body NOT NULL
);

-- What was meant to be done, written before it was done, and kept for good as a part of its incident's story. `seq` is
-- the event that led to it.
CREATE TABLE commands (
  id       TEXT PRIMARY KEY,
  seq      INTEGER NOT NULL,
  at       REAL NOT NULL,
  kind     TEXT NOT NULL,
  incident TEXT NOT NULL,
  body     NOT NULL,
  state    TEXT NOT NULL DEFAULT 'intended' CHECK (state IN ('intended', 'done', 'failed')),
  outcome  TEXT NOT NULL DEFAULT ''
);
CREATE INDEX commands_open ON commands (state) WHERE state = 'intended';
CREATE INDEX commands_incident ON commands (incident);

CREATE TABLE cursors (
  source   TEXT PRIMARY KEY,
  position INTEGER NOT NULL
);

CREATE TABLE incidents (
  id        TEXT PRIMARY KEY,
  opened_at REAL NOT NULL,
  closed_at REAL,
  body      NOT NULL
);

CREATE TABLE snapshot (
  only  INTEGER PRIMARY KEY CHECK (only = 1),
  seq   INTEGER NOT NULL,
  state BLOB NOT NULL
);

COMMIT;
