-- Effects: commands that must happen once, by key. `status`: unused, running, succeeded, failed or in_doubt; `was`: the
-- status before the latest claim, which comes back if the command was never started. `command_digest` tells commands
-- apart, `command` is for people. `begun_*`: the run that began it last. `source`: command, check or person, whoever
-- said how it ended; with it `exit_code`, `stdout`, `stderr` and `note` are valid. `reason`: why it is in doubt.
create table effect (
  name text primary key,
  status text not null,
  was text not null,
  command text not null,
  command_digest text not null,
  run integer,
  fence integer not null,
  delivery integer not null default 1,
  until_at integer,
  claimed_at integer,
  last_fence integer,
  last_verb text,
  last_digest text,
  begun_run text not null,
  begun_agent text,
  begun_at integer not null,
  source text,
  exit_code integer,
  stdout text,
  stderr text,
  note text,
  reason text,
  created_at integer not null,
  updated_at integer not null
) strict;
create index effect_held on effect(run) where run is not null;
create index effect_until on effect(until_at) where until_at is not null;
