-- `delivery`: how often the claim on this row, and those before it, were handed out anew to who asked again. A server
-- whose reply was lost gives the claim back only if nobody was handed it since.
alter table task add column delivery integer not null default 1;
alter table lock add column delivery integer not null default 1;

-- Who may call from afar. Only the digest of a secret is kept. `role` is the most that it may call; an agent's key is
-- bound to its agent. A revoked key stays, so that the log can be read.
create table access_key (
  id integer primary key autoincrement,
  name text not null,
  digest text not null,
  role text not null,
  agent text,
  created_at integer not null,
  revoked_at integer
) strict;
create unique index access_key_name on access_key(name) where revoked_at is null;
create unique index access_key_digest on access_key(digest);
