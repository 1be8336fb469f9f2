-- A worker's polls: of one board, and none while its agent is paused.

-- The pool of one board by the tags that a task needs. Board and tags are one key: a search gives it as a range of one
-- text, and then no other index has the order that it wants. A name has no space, so the key stands for one board.
create index task_board_needs on task((board || ' ' || coalesce(tags, '')), priority desc, seq) where ready = 1;

-- While an agent is paused, its polls get nothing. `paused_at`: since when; null if it is not. `paused_until`: the pause
-- ends then by itself; null: when the agent is resumed. `paused_reason`: why.
alter table agent add column paused_at integer;
alter table agent add column paused_until integer;
alter table agent add column paused_reason text;

-- `output`: the end of the output of an attempt that failed or was given back. (That of a completed one is kept with
-- its task or its messages.)
alter table run add column output text;
