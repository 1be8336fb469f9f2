-- Tasks and boards.

create table board (
  name text primary key,
  next_n integer not null,
  created_at integer not null
) strict;

-- The state of a task: a small row that every transition rewrites. What is long and seldom changes is in
-- `task_doc`. `seq` is the order of age. `waiting_on` counts dependencies that are not completed. `lapsed`: its
-- last claim was lost, so it is handed out alone. `reviews`: how many reviews of an offer lapsed.
create table task (
  seq integer primary key autoincrement,
  board text not null,
  n integer not null,
  title text not null,
  kind text,
  priority integer not null,
  tags text,
  source text,
  creator text,
  idempotency_key text,
  max_attempts integer not null,
  created_at integer not null,

  status text not null,
  assignee text,
  offered_to text,
  offered_at integer,
  accepted_at integer,
  rejection_reason text,
  parked text,
  delayed_until integer,
  waiting_on integer not null default 0,
  attempts integer not null default 0,
  reviews integer not null default 0,
  lapsed integer not null default 0,
  run integer,
  fence integer not null default 0,
  until_at integer,
  claimed_at integer,
  last_fence integer,
  last_verb text,
  last_digest text,
  failure_reason text,
  updated_at integer not null,
  finished_at integer,

  -- Claimable is a stored literal: 1 for anyone, 2 for the assignee. The database keeps it, so it cannot disagree.
  ready integer not null generated always as (
    case
      when waiting_on > 0 or parked is not null or delayed_until is not null then 0
      when status = 'unassigned' then 1
      when status = 'pending' then 2
      else 0
    end) stored
) strict;
create unique index task_number on task(board, n);
create unique index task_key on task(idempotency_key) where idempotency_key is not null;
create index task_pool on task(priority desc, seq) where ready = 1;
create index task_board_pool on task(board, priority desc, seq) where ready = 1;
create index task_mine on task(assignee, priority desc, seq) where ready = 2;
create index task_board_mine on task(assignee, board, priority desc, seq) where ready = 2;
create index task_held on task(run) where run is not null;
create index task_until on task(until_at) where until_at is not null;
create index task_delay on task(delayed_until) where delayed_until is not null;
create index task_assigned on task(board) where ready = 2;
create index task_waiting on task(board) where ready = 0 and run is null and finished_at is null;
create index task_failed on task(board) where status = 'failed';
create index task_finished on task(finished_at) where finished_at is not null;

create table task_doc (
  task integer primary key,
  body text,
  done_when text,
  origin text,
  output text,
  progress text,
  checkpoint_n integer,
  checkpoint text
) strict;

-- `task` waits for `depends_on`.
create table edge (
  task integer not null,
  depends_on integer not null,
  primary key (task, depends_on)
) strict;
create index edge_back on edge(depends_on, task);

-- A copy of what a claim by tag looks for, so that it does not scan past a million that do not fit.
create table task_tag (
  task integer not null,
  tag text not null,
  board text not null,
  priority integer not null,
  ready integer not null,
  primary key (task, tag)
) strict;
create index task_tag_pool on task_tag(tag, priority desc, task) where ready = 1;
create index task_tag_board_pool on task_tag(tag, board, priority desc, task) where ready = 1;

-- Notes, and the history of progress.
create table note (
  id integer primary key autoincrement,
  task integer not null,
  kind text not null,
  at integer not null,
  agent text,
  run text,
  fence integer,
  body text not null
) strict;
create index note_task on note(task, id);
