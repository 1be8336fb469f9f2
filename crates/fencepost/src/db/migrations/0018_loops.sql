-- Loops. A loop is a board of the same name, and its stories are tasks of that board. They are assigned to `loop/ID`, which
-- no agent can be called, so that only `loop/next` claims them.

-- `plan`: the stories and the limits as they were started, as JSON; a second start must have the same. `iterations`: how
-- often a story was claimed. `summary` is stored when the loop ends, because its tasks are pruned later; the row stays, so
-- that the id is never used again.
create table loop (
  id text primary key,
  plan text not null,
  iterations integer not null default 0,
  status text not null,
  reason text,
  started_at integer not null,
  ended_at integer,
  summary text
) strict;
create index loop_active on loop(started_at) where ended_at is null;

-- `n`: its place in the plan. `task` is null if the plan said that it passed or was skipped (`given`). `skipped_by`: why an
-- unfinished story was skipped. `retries` counts failing verdicts, `claims` counts claims. `feedback` is that of the last
-- failing verdict. `commit_id`: the commit that the last step recorded, which is the one that a verdict judges. `round_after`:
-- the present round began after this fence.
create table story (
  loop text not null,
  id text not null,
  n integer not null,
  task integer,
  given text,
  skipped_by text,
  retries integer not null default 0,
  claims integer not null default 0,
  feedback text,
  commit_id text,
  round_after integer not null default 0,
  primary key (loop, id)
) strict;
create unique index story_task on story(task) where task is not null;

-- Finished steps. `round`: the number of failing verdicts before it, so that the steps of a new round begin at the first.
create table story_step (
  loop text not null,
  story text not null,
  round integer not null,
  n integer not null,
  name text not null,
  at integer not null,
  run text not null,
  fence integer not null,
  commit_id text,
  data text,
  learned text,
  cost text,
  primary key (loop, story, round, n)
) strict;
create unique index story_step_name on story_step(loop, story, round, name);
