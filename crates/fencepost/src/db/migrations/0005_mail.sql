-- Mailboxes: durable queues, and the messages in them.

-- `topic`: whom an event could concern of those who wait to take something, so that it wakes only them: `task`,
-- `lock/NAME`, `mail/NAME`. Null: everyone. Empty: nobody.
alter table event add column topic text;

-- A row is made by the first push, or by whoever sets something. What is null is the default. `in_order`: strict, for
-- good: it cannot be changed while there may be messages that were put in under the other rule. `paused`: why.
create table mailbox (
  name text primary key,
  in_order integer not null default 0,
  paused text,
  ttl_ms integer,
  max_attempts integer,
  backoff_ms integer,
  replay text,
  retain_ms integer,
  retain_count integer,
  created_at integer not null
) strict;
create index mailbox_counted on mailbox(name) where retain_count is not null;

-- The state of a message: a small row that every transition rewrites; what is long is in `message_doc`. `id` is the
-- order. `lane`: what order is kept by, in a strict mailbox only; of the unfinished messages of a lane one has
-- `behind = 0`, and it is its turn. `lapsed`: its last claim was lost, so it is handed out alone. `size`: of its
-- payload, in bytes. `prune_at`: from when on nobody needs it any more.
create table message (
  id integer primary key autoincrement,
  mailbox text not null,
  lane text,
  kind text,
  idempotency_key text,
  priority integer not null,
  max_attempts integer not null,
  size integer not null default 0,
  created_at integer not null,

  status text not null,
  outcome text,
  behind integer not null default 0,
  delayed_until integer,
  attempts integer not null default 0,
  lapsed integer not null default 0,
  run integer,
  fence integer not null default 0,
  delivery integer not null default 1,
  until_at integer,
  claimed_at integer,
  last_fence integer,
  last_verb text,
  last_digest text,
  failure_reason text,
  updated_at integer not null,
  finished_at integer,
  prune_at integer,

  -- Claimable is a stored literal. The database keeps it, so it cannot disagree.
  ready integer not null generated always as (
    case when status = 'pending' and delayed_until is null and behind = 0 then 1 else 0 end) stored
) strict;
create unique index message_key on message(mailbox, idempotency_key) where idempotency_key is not null;
create index message_ready on message(mailbox, priority desc, id) where ready = 1;
create index message_lane on message(mailbox, lane, id) where lane is not null and finished_at is null;
create index message_held on message(run) where run is not null;
create index message_busy on message(mailbox, id) where run is not null;
create index message_until on message(until_at) where until_at is not null;
create index message_delay on message(delayed_until) where delayed_until is not null;
create index message_waiting on message(mailbox, id) where ready = 0 and run is null and finished_at is null;
create index message_failed on message(mailbox, id) where status = 'failed';
create index message_history on message(mailbox, finished_at) where finished_at is not null;
create index message_prune on message(prune_at) where prune_at is not null;

create table message_doc (
  message integer primary key,
  payload text,
  headers text,
  checkpoint_n integer,
  checkpoint text
) strict;

-- What came of a message, under the claim that completed it.
create table message_output (
  message integer not null,
  n integer not null,
  fence integer not null,
  output text not null,
  primary key (message, n)
) strict;
