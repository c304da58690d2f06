-- Each change has the tag of the version that it made, which proves that a version is of this history: a restored backup
-- may have the same revisions with other posts.
--
-- The check of the kind is faster: in a trigger, SQLite builds the list of an `IN` with three values anew for each row.

-- Not renamed: views of other programs would follow.
CREATE TABLE change_kept AS SELECT revision, kind, id, post FROM change;
DROP TABLE change;

-- post is the new text, NULL for a deleted post; tag is NULL for a change made before schema 6.
CREATE TABLE change (
    revision INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind = 'added' OR kind = 'updated' OR kind = 'deleted'),
    id INTEGER NOT NULL,
    post TEXT,
    tag BLOB
);
INSERT INTO change SELECT revision, kind, id, post, NULL FROM change_kept ORDER BY revision;
DROP TABLE change_kept;

DROP TRIGGER post_added;
CREATE TRIGGER post_added AFTER INSERT ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'added', NEW.id, NEW.post, (SELECT tag FROM version));
END;

DROP TRIGGER post_updated;
CREATE TRIGGER post_updated AFTER UPDATE ON post WHEN OLD.post <> NEW.post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'updated', NEW.id, NEW.post, (SELECT tag FROM version));
END;

DROP TRIGGER post_deleted;
CREATE TRIGGER post_deleted AFTER DELETE ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'deleted', OLD.id, NULL, (SELECT tag FROM version));
END;

CREATE TRIGGER change_added AFTER INSERT ON change WHEN NEW.revision % 100 = 0 BEGIN
    DELETE FROM change WHERE revision <= NEW.revision - 10000;
END;
