-- From outside to an agent's inbox: the rules, and what was delivered already.

-- `rule`: what must be so, as JSON; no two that are in force say the same. They are tried by `place`, and the first that
-- fits decides. One that is removed stays, so that its number can be explained.
create table route (
  id integer primary key autoincrement,
  place integer not null,
  rule text not null,
  agent text not null,
  created_at integer not null,
  removed_at integer
) strict;
create unique index route_rule on route(rule) where removed_at is null;
create index route_place on route(place) where removed_at is null;

-- What a provider delivered, by its own id and by the digest of what it signed: seen again, it is dropped, and counted.
-- `message`: what the first became.
create table delivery (
  source text not null,
  id text not null,
  message integer,
  repeats integer not null default 0,
  at integer not null,
  primary key (source, id)
) strict;
create index delivery_at on delivery(at);
