-- Sessions begun at an OpenID provider. The columns have the names of postd.protocol.session.Session.
ALTER TABLE session ADD COLUMN shown_name TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN provider TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN sid TEXT NOT NULL DEFAULT '';

-- Sessions begun by form login are in neither index, and take no time for them.
CREATE INDEX session_of_subject ON session (fingerprint, subject) WHERE subject <> '';
CREATE INDEX session_of_sid ON session (fingerprint, sid) WHERE sid <> '';

-- ID tokens. Not in the sessions: those are read by each request, and a row of theirs should stay small. With rowids, as
-- only the unused space of such tables is searched for what was deleted (postd.store.sqlite.unused_space).
CREATE TABLE id_token (
    id_hash BLOB NOT NULL UNIQUE,
    id_token TEXT NOT NULL
);

-- An ID token ends with its session, however that ends.
CREATE TRIGGER session_ended AFTER DELETE ON session BEGIN
    DELETE FROM id_token WHERE id_hash = OLD.id_hash;
END;
