-- Storms: causes, wake-ups for unread posts, and the limits on both.

-- The cause of a post, a message or a task (`item`: `post/general/12`, `message/812`, `task/auth-3`) that a run made. `root`:
-- the item or run at the start of the chain. `depth`: the number of mentions and wake-ups that triggered a run between them. Tasks
-- and inbox messages do not count, because a long plan is no storm. An item without a row starts a chain.
create table caused (
  item text primary key,
  run text not null,
  root text not null,
  depth integer not null,
  at integer not null
) strict;
create index caused_root on caused(root);
create index caused_at on caused(at);

-- One row per trigger of a poll: `run` is the key of its run, `name` that run's name, `cause` the item that triggered it. `usd`
-- (in millionths of a dollar) and the tokens are the cost, known when the run is settled.
create table triggered (
  run integer primary key,
  name text not null,
  agent text not null,
  kind text not null,
  board text,
  at integer not null,
  cause text,
  root text,
  depth integer not null,
  usd integer not null default 0,
  tokens_in integer not null default 0,
  tokens_out integer not null default 0
) strict;
create index triggered_at on triggered(at);
create index triggered_agent on triggered(agent, at);
create index triggered_board on triggered(board, at) where board is not null;
create index triggered_root on triggered(root, at) where root is not null;

-- `quiet`: the post wakes nobody.
alter table post add column quiet integer not null default 0;

-- `marked_n`: posts up to this number are marked as unread with the members (`reader.wake_n`).
alter table channel add column marked_n integer not null default 0;
update channel set marked_n = next_n - 1;
-- SQLite uses the index only if the column is on the left side, here and in statements.
create index channel_unmarked on channel(name) where marked_n < next_n - 1;

-- `wake_n`: the last post of others that may wake the member. `wake_at`: when the scheduler looks at the pair again; null if a
-- post or the agent's return has to come first. `wake_why`: the reason why its last look scheduled nothing, and `suppressed` the
-- number of such looks since the last wake-up.
alter table reader add column wake_n integer not null default 0;
alter table reader add column wake_at integer;
alter table reader add column wake_why text;
alter table reader add column suppressed integer not null default 0;
create index reader_wake on reader(wake_at, agent, channel) where wake_at is not null;

-- `wakes_until`: as `heard_until`, by polls that accept wake-ups. `asleep`: the agent did not, when the scheduler looked at a pair
-- of it.
alter table agent add column wakes_until integer not null default 0;
alter table agent add column asleep integer not null default 0;
create index agent_asleep on agent(wakes_until) where asleep = 1;

-- One row per scheduled wake-up, with its message in the mailbox `wakeups/AGENT`. `n` is the last post, so one post is not
-- scheduled twice. The budgets count these rows.
create table wakeup (
  agent text not null,
  channel text not null,
  n integer not null,
  message integer not null,
  at integer not null,
  cause text not null,
  root text not null,
  depth integer not null,
  primary key (agent, channel, n)
) strict;
create unique index wakeup_message on wakeup(message);
create index wakeup_pair on wakeup(agent, channel, at);
create index wakeup_root on wakeup(root);
create index wakeup_at on wakeup(at);

-- Settings of the scheduler that differ from their defaults. `scope`: a channel, or empty for the fleet.
create table setting (
  scope text not null,
  name text not null,
  value integer not null,
  source text not null,
  at integer not null,
  primary key (scope, name)
) strict;
-- Agents that were not woken before are not woken after an upgrade until somebody sets it.
insert into setting(scope, name, value, source, at)
  select '', 'enabled', 0, 'upgrade', 0 where exists (select 1 from event);

-- One row. The breaker is open while `opened_at` is set; `open_until`: when it may close, null if a person opened it. `alarm`: what
-- is wrong, since `alarm_at`.
create table storm (
  one integer primary key check (one = 1),
  opened_at integer,
  open_until integer,
  alarm text,
  alarm_at integer
) strict;
insert into storm(one) values (1);

create table storm_count (name text primary key, n integer not null) strict;
insert into storm_count(name, n) values
  ('scheduled', 0), ('suppressed_budget', 0), ('suppressed_breaker', 0), ('suppressed_cause', 0), ('reclaimed', 0);

-- The settings in the environment of each server, until it stops renewing them.
create table server_setting (
  server text not null,
  name text not null,
  value integer not null,
  until_at integer not null,
  primary key (server, name)
) strict;

-- `scope`: `fleet`, `agent/NAME` or `board/NAME`. `what`: runs, tokens, or usd (in millionths of a dollar).
create table spend_limit (
  scope text not null,
  what text not null,
  amount integer not null,
  window_ms integer not null,
  at integer not null,
  primary key (scope, what)
) strict;
