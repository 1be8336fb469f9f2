-- What was asked under a request id, and by whom: the op, a digest of op, key and request, and the key's name (nothing for
-- a caller without one). The same id with other content is refused, and ids of different keys are apart. Events of
-- earlier versions have none.
alter table event add column asked text;
