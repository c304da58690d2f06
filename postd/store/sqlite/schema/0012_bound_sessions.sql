-- Sessions that browsers bind to their devices. The columns have the names of postd.protocol.session.Session.
ALTER TABLE session ADD COLUMN device_key TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN bound REAL NOT NULL DEFAULT 0;

-- Accounts of which a session was bound at any time.
CREATE TABLE bound_account (username TEXT PRIMARY KEY) WITHOUT ROWID;
