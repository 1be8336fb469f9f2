-- Runs, locks and events: the ground that every claim stands on.
--
-- Written as SQLite reads it. For PostgreSQL `integer` becomes `bigint`, `text` is compared byte by byte, the
-- automatic keys become identity columns, and what stands in a pg comment is uncovered. Times are milliseconds.

/*pg
create function fence_each(list text) returns table (key bigint, value jsonb)
  language sql immutable parallel safe rows 10
  as 'select ordinality - 1, value from jsonb_array_elements(list::jsonb) with ordinality';
*/

-- One row. `floor`: no fence at or below it is given out again. `boot` and `ahead_ms`: how far the wall clock was
-- seen ahead of that boot's ticks, so that setting it back does not keep the dead alive; on PostgreSQL, how far the
-- fleet's time is ahead of the database's clock since that was set back. `restored`: this is a backup that was put
-- back. `normal_boot`: the boot in which commits were not synced one by one. `pruned_*`: events up to this position
-- are gone.
create table fleet (
  one integer primary key check (one = 1),
  floor integer not null default 0,
  boot text,
  ahead_ms integer,
  seen_at integer,
  restored integer not null default 0,
  normal_boot text,
  pruned_xact integer not null default 0,
  pruned_id integer not null default 0
) strict;
insert into fleet(one) values (1);

-- Rows that are only locked, never changed. `edges`: changes of dependencies happen one at a time.
create table gate (name text primary key) strict;
insert into gate(name) values ('edges');

-- A row is one incarnation of a run, with a key of its own; claims carry that key, never the name.
-- Alive: `ended_at is null and expires_at > now`. Ended and `settled = 0`: it may still hold something.
create table run (
  key integer primary key autoincrement,
  name text not null,
  agent text,
  ttl_ms integer not null,
  opened_at integer not null,
  expires_at integer not null,
  ended_at integer,
  reason text,
  settled integer not null default 0
) strict;
create unique index run_unended on run(name) where ended_at is null;
create index run_lapse on run(expires_at) where ended_at is null;
create index run_unsettled on run(key) where ended_at is not null and settled = 0;
create index run_ended on run(ended_at) where ended_at is not null;

-- The simplest claimable thing. `run` and `fence` are the claim; `last_*` is how the last claim ended, by which
-- a repeat of that ending is answered.
create table lock (
  name text primary key,
  run integer,
  fence integer not null,
  until_at integer,
  claimed_at integer,
  last_fence integer,
  last_verb text,
  last_digest text,
  updated_at integer not null
) strict;
create index lock_held on lock(run) where run is not null;
create index lock_until on lock(until_at) where until_at is not null;
create index lock_free on lock(updated_at) where run is null;

-- The append-only log. On PostgreSQL order is (xact, id), because sequence order is not commit order; on SQLite
-- `xact` is always 0, and nothing looks at it. `request` is the id under which a client may ask again.
create table event (
  id integer primary key autoincrement,
  xact integer not null default /*pg (pg_current_xact_id()::text::bigint) --*/ 0
  ,
  at integer not null,
  kind text not null,
  resource text not null,
  from_state text,
  to_state text,
  run text,
  agent text,
  fence integer,
  request text,
  details text
) strict;
/*pg
create index event_position on event(xact, id);
*/
create index event_request on event(request) where request is not null;
create index event_resource on event(resource, id);
