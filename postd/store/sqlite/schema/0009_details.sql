-- Times and author of posts, NULL where they are unknown, as for all posts of before.
--
-- created and updated are milliseconds since the epoch; author is an account.
ALTER TABLE post ADD COLUMN created INTEGER;
ALTER TABLE post ADD COLUMN updated INTEGER CHECK (updated >= created);
ALTER TABLE post ADD COLUMN author TEXT CHECK (author <> '');

-- The collection of posts, which keeps its id when it is copied or restored. began: when times began to be kept.
CREATE TABLE collection (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    id BLOB NOT NULL CHECK (length(id) = 16),
    began INTEGER NOT NULL
);
INSERT INTO collection VALUES (1, randomblob(16), 1000 * strftime('%s', 'now'));
