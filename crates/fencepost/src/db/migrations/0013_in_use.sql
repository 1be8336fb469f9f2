-- Time in use: what may be forgotten after a while ages only while the fleet is used. `at`: nothing was called for more
-- than an hour before; all of that time but an hour, `ms`, does not count. A clock that jumps looks the same.
create table gap (
  at integer primary key,
  ms integer not null
) strict;
-- How often the clock was put right: a process that remembers how late it was forgets it then.
alter table fleet add column clock_resets integer not null default 0;
