-- The log has no texts: those of deleted and replaced posts would stay in it. A replay joins it with the posts.
--
-- An index finds the later changes of a post: only the last one is replayed. These are not 'added', so that adding a post
-- need not write to it.

-- Not renamed: views of other programs would follow.
CREATE TABLE change_kept AS SELECT revision, kind, id, tag FROM change;
DROP TABLE change;

-- tag is NULL for a change made before schema 6.
CREATE TABLE change (
    revision INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind = 'added' OR kind = 'updated' OR kind = 'deleted'),
    id INTEGER NOT NULL,
    tag BLOB
);
INSERT INTO change SELECT revision, kind, id, tag FROM change_kept ORDER BY revision;
DROP TABLE change_kept;
CREATE INDEX change_of_post ON change (id) WHERE kind <> 'added';

DROP TRIGGER post_added;
CREATE TRIGGER post_added AFTER INSERT ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'added', NEW.id, (SELECT tag FROM version));
END;

DROP TRIGGER post_updated;
CREATE TRIGGER post_updated AFTER UPDATE ON post WHEN OLD.post <> NEW.post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'updated', NEW.id, (SELECT tag FROM version));
END;

DROP TRIGGER post_deleted;
CREATE TRIGGER post_deleted AFTER DELETE ON post BEGIN
    UPDATE version SET revision = revision + 1, tag = randomblob(8);
    INSERT INTO change VALUES
        ((SELECT revision FROM version), 'deleted', OLD.id, (SELECT tag FROM version));
END;

CREATE TRIGGER change_added AFTER INSERT ON change WHEN NEW.revision % 100 = 0 BEGIN
    DELETE FROM change WHERE revision <= NEW.revision - 10000;
END;
