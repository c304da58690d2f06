-- Posts, the version of them all, and the log of what has changed.
--
-- The version and the log are kept by triggers: they are right whatever writes here, the sqlite3 shell too.

-- AUTOINCREMENT: without it SQLite gives the largest id out again once its post is deleted.
-- postd.model has the rules, the checks are a second fence (length() ends at a NUL); ids end at 2^53 - 1.
CREATE TABLE post (
    id INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id BETWEEN 1 AND 9007199254740991),
    post TEXT NOT NULL CHECK (typeof(post) = 'text' AND length(post) BETWEEN 1 AND 140)
);

CREATE TABLE version (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    revision INTEGER NOT NULL,
    tag BLOB NOT NULL
);
INSERT INTO version VALUES (1, 0, randomblob(8));

-- What was done to which post; post is its text then, NULL when it was deleted.
CREATE TABLE change (
    revision INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('added', 'updated', 'deleted')),
    id INTEGER NOT NULL,
    post TEXT
);

CREATE TRIGGER post_added AFTER INSERT ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change SELECT revision, 'added', NEW.id, NEW.post FROM version;
END;

CREATE TRIGGER post_updated AFTER UPDATE ON post WHEN OLD.post <> NEW.post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change SELECT revision, 'updated', NEW.id, NEW.post FROM version;
END;

-- An id is a post's for ever, and what is deleted by REPLACE would be deleted in silence.
CREATE TRIGGER post_kept_its_id BEFORE UPDATE OF id ON post WHEN OLD.id <> NEW.id BEGIN
    SELECT RAISE(ABORT, 'the id of a post cannot be changed');
END;

CREATE TRIGGER post_not_replaced BEFORE INSERT ON post WHEN EXISTS (SELECT 1 FROM post WHERE id = NEW.id) BEGIN
    SELECT RAISE(ABORT, 'a post with this id is there');
END;

CREATE TRIGGER post_deleted AFTER DELETE ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change SELECT revision, 'deleted', OLD.id, NULL FROM version;
END;

-- Bounded: each change takes the one that is 10,000 older (postd.store.interface.CHANGES_KEPT) away.
CREATE TRIGGER change_added AFTER INSERT ON change BEGIN
    DELETE FROM change WHERE revision <= NEW.revision - 10000;
END;
