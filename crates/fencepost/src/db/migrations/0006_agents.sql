-- Agents, their conversation, and the polls by which they are given work.

-- `heard_until`: an agent promises to be heard from (by a poll) before this; a living run of its counts, too.
-- `jumped`: what it was given last went before its turn, because it had waited for long.
-- `strands_at`: if it is silent until then, what is offered or assigned to it goes back to the pool.
create table agent (
  name text primary key,
  role text not null,
  capabilities text,
  max_concurrent integer,
  strand_ms integer not null,
  joined_at integer not null,
  heard_until integer not null,
  strands_at integer,
  jumped integer not null default 0,
  left_at integer
) strict;
create index agent_strands on agent(strands_at) where strands_at is not null;

-- What a run is for. `trigger_type`: what a poll gave to it, once and for ever; `given`: as the poll's reply said it.
alter table run add column host text;
alter table run add column trigger_type text;
alter table run add column given text;
alter table run add column exit text;
alter table run add column cost text;
create index run_agent on run(agent) where ended_at is null;
-- A name's last run, ended or not: whoever asks again with it is given the same.
create index run_name on run(name, key);

-- `told = 0`: no lead was told yet that it is finished. Of what was finished before there were leads nobody is told.
alter table task add column told integer not null default 0;
update task set told = 1 where finished_at is not null;
create index task_offers on task(offered_to, seq) where status = 'offered' and parked is null;
create index task_untold on task(finished_at) where told = 0 and status in ('completed', 'failed');
-- The pool by what a task asks for, so that a worker does not look past a million that do not fit.
create index task_needs on task(tags, priority desc, seq) where ready = 1;

create table channel (
  name text primary key,
  description text,
  next_n integer not null,
  creator text,
  created_at integer not null
) strict;

-- Posts are numbered per channel under the channel's row lock: the order of numbers is that of commits.
create table post (
  channel text not null,
  n integer not null,
  author text,
  body text not null,
  reply_to integer,
  mentions text,
  idempotency_key text,
  at integer not null,
  primary key (channel, n)
) strict;
create unique index post_key on post(channel, idempotency_key) where idempotency_key is not null;

-- An agent in a channel: how far it has read, and the claim on its unread mentions. `mentioned_n` is the last post that
-- mentions it; `since`: when the first one that it has not read was posted. `given_n`: how far the claim goes.
-- `attempts`: how often in a row a claim came to nothing; `failed_n`: up to there nobody is triggered any more.
create table reader (
  agent text not null,
  channel text not null,
  member integer not null default 0,
  read_n integer not null default 0,
  mentioned_n integer not null default 0,
  since integer,
  run integer,
  fence integer not null default 0,
  delivery integer not null default 1,
  until_at integer,
  claimed_at integer,
  given_n integer,
  attempts integer not null default 0,
  failed_n integer not null default 0,
  last_fence integer,
  last_verb text,
  last_digest text,
  updated_at integer not null,
  ready integer not null generated always as (
    case when run is null and mentioned_n > read_n and mentioned_n > failed_n then 1 else 0 end) stored,
  primary key (agent, channel)
) strict;
create index reader_ready on reader(agent, since) where ready = 1;
create index reader_held on reader(run) where run is not null;
create index reader_until on reader(until_at) where until_at is not null;
create index reader_channel on reader(channel) where member = 1;

-- A mention is a row, not text to search for.
create table mention (
  agent text not null,
  channel text not null,
  n integer not null,
  at integer not null,
  primary key (agent, channel, n)
) strict;
