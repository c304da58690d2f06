-- Personal access tokens, passkeys and resets of passwords. The columns have the names of the structs in postd.protocol.
--
-- No table has a secret: token_hash and secret_hash are SHA-256 of one. So their rows are not removed from unused space.

ALTER TABLE session ADD COLUMN authenticated REAL NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN browser TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN scheme TEXT NOT NULL DEFAULT '';

-- expires is infinity for a token that never does.
CREATE TABLE personal_token (
    token_hash BLOB PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    entry BLOB NOT NULL,
    label TEXT NOT NULL,
    access TEXT NOT NULL CHECK (access = 'read' OR access = 'write'),
    created REAL NOT NULL,
    expires REAL NOT NULL,
    used REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX personal_token_in_order_of_expiry ON personal_token (expires);
CREATE INDEX personal_token_of_account ON personal_token (account);

CREATE TABLE passkey (
    credential_id BLOB PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    entry BLOB NOT NULL,
    public_key BLOB NOT NULL,
    label TEXT NOT NULL,
    created REAL NOT NULL,
    used REAL NOT NULL,
    sign_count INTEGER NOT NULL,
    backup_eligible INTEGER NOT NULL,
    backed_up INTEGER NOT NULL,
    shown_name TEXT NOT NULL,
    subject TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX passkey_of_account ON passkey (account);

CREATE TABLE password_reset (
    secret_hash BLOB PRIMARY KEY,
    account TEXT NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    expires REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX password_reset_in_order_of_expiry ON password_reset (expires);
