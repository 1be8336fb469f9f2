-- A claimable noun that exists only in tests.
create table parcel (
  name text primary key,
  run integer,
  fence integer not null default 0,
  delivery integer not null default 1,
  until_at integer,
  claimed_at integer,
  last_fence integer,
  last_verb text,
  last_digest text
) strict;
create index parcel_held on parcel(run) where run is not null;
create index parcel_until on parcel(until_at) where until_at is not null;
