-- Posts, their version, and the log of their changes.
--
-- Triggers maintain the version and the log, so that they are right for writes of other programs too.

-- AUTOINCREMENT: without it SQLite assigns the largest id again after its post is deleted.
-- postd.model validates posts; the checks are a second line of defense (length() ends at a NUL). Ids end at 2^53 - 1.
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

-- post is the new text, NULL for a deleted post.
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

-- The id of a post never changes. REPLACE would delete a post without a trigger.
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

-- Bounded: each change deletes the one that is 10,000 older (postd.store.interface.CHANGES_KEPT).
CREATE TRIGGER change_added AFTER INSERT ON change BEGIN
    DELETE FROM change WHERE revision <= NEW.revision - 10000;
END;
