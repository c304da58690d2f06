-- Each change has the tag of the version that it made, which proves that a version is of this history: a restored backup
-- may have the same revisions with other posts. NULL, of an older change: unknown.

ALTER TABLE change ADD COLUMN tag BLOB;

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
