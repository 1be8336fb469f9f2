-- `id`: 16 random hexadecimal digits, the same for ever, also in a backup that was put back. Traces of the fleet elsewhere
-- (the trailer of a git commit) name it, because two fleets may have a task of the same name.
alter table fleet add column id text;
update fleet set id = /*pg left(gen_random_uuid()::text, 8) || right(gen_random_uuid()::text, 8); --*/ lower(hex(randomblob(8)));
